#include "graph_device.h"

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "stagecraft/stage/random.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

/// A capture changes the state of the default generator, which a replay reads: one thread captures, or several replay.
std::shared_mutex& captures() {
  static std::shared_mutex mutex;
  return mutex;
}

/// Tells the default generator that a capture that has failed is over. CUDAGraph does so only after a capture that
/// succeeded. Later versions of LibTorch keep this by capture, and have nothing to reset.
template <typename State>
void end_capture_of(State& state) {
  if constexpr (requires { state.capturing_; }) state.capturing_ = false;
}

template <typename Allocator, typename Pool>
void end_host_pool(Allocator* host, const Pool& pool) {
  if constexpr (requires { host->end_allocate_to_pool(pool); }) {
    host->end_allocate_to_pool(pool);
    host->release_pool(pool);
  }
}

/// LibTorch warns of a graph without work. The piece of a step may have none: the input gradients of a first stage.
class WithoutEmptyGraphs final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("CUDA Graph is empty") == std::string::npos) outer_.process(warning);
  }

 private:
  c10::WarningHandler& outer_ = *c10::WarningUtils::get_warning_handler();
};

/// When the last graph that draws from LibTorch's own generator has read its state, which is in one place. Under
/// default_generators().
c10::Event& last_read(c10::DeviceIndex device) {
  static std::map<c10::DeviceIndex, c10::Event> all;
  return all.try_emplace(device, c10::kCUDA).first->second;
}

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(std::shared_ptr<void> pool_user) : pool_user_(std::move(pool_user)) {}
  /// LibTorch's graph takes itself off the list of the default generator without a lock, while other threads capture,
  /// or end too.
  ~CudaGraph() override {
    const std::lock_guard lock(default_generators());
    graph_.reset();
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void begin(c10::DeviceIndex device, const at::cuda::MempoolId_t& pool) {
    const std::lock_guard lock(default_generators());
    last_read(device).synchronize();  // the beginning of a capture writes that state
    graph_->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  }
  void end(c10::DeviceIndex device, const at::cuda::MempoolId_t& pool) {
    WithoutEmptyGraphs handler;
    const c10::WarningUtils::WarningHandlerGuard quiet(&handler);
    try {
      graph_->capture_end();
      const std::lock_guard lock(default_generators());
      last_read(device).record(c10::cuda::getCurrentCUDAStream(device));
    } catch (...) {
      graph_->end_captures_of_generators();
      try {
        allocator::endAllocateToPool(device, pool);  // throws if capture_end has come so far
        allocator::releasePool(device, pool);
        end_host_pool(at::getHostAllocator(at::kCUDA), pool);
      } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch)
      }
      throw;
    }
  }
  void replay() override {
    const std::shared_lock lock(captures());
    if (!graph_->draws()) return graph_->replay();
    // Every replay writes the state, and its kernels read it.
    const std::lock_guard one_at_a_time(default_generators());
    const c10::Stream stream = c10::cuda::getCurrentCUDAStream();
    c10::Event& last = last_read(stream.device_index());
    last.block(stream);
    graph_->replay();
    last.record(stream);
  }

 private:
  struct Graph : at::cuda::CUDAGraph {
    /// Whether it takes numbers from LibTorch's own generator.
    [[nodiscard]] bool draws() const {
      return std::any_of(captured_generator_states_.begin(), captured_generator_states_.end(),
                         [](const auto& state) { return state.second > 0; });
    }
    void end_captures_of_generators() {
      for (auto& [state, increment] : captured_generator_states_) end_capture_of(*state);
    }
  };

  std::shared_ptr<void> pool_user_;
  std::unique_ptr<Graph> graph_ = std::make_unique<Graph>();
};

/// The state of a generator within the capture that is under way.
template <typename State>
c10::intrusive_ptr<State> state_of_capture(const at::Tensor& seed, const at::Tensor& offset, std::uint64_t begin) {
  auto state = c10::make_intrusive<State>();
  if constexpr (requires { state->seed_extragraph_; }) {
    state->capturing_ = true;
    state->offset_intragraph_ = begin;
    state->seed_extragraph_ = seed;
    state->offset_extragraph_ = offset;
  } else {
    using Capture = typename std::decay_t<decltype(state->capture_states_.begin()->second)>::element_type;
    auto capture = c10::make_intrusive<Capture>();
    capture->offset_intragraph_ = begin;
    capture->rng_state_seed_extragraph_ = seed;
    capture->rng_state_offset_extragraph_ = offset;
    cudaStreamCaptureStatus status{};
    unsigned long long id = 0;
    C10_CUDA_CHECK(cudaStreamGetCaptureInfo(c10::cuda::getCurrentCUDAStream(), &status, &id));
    state->capture_states_.emplace(id, std::move(capture));
  }
  return state;
}

template <typename State>
std::uint64_t offset_in(State& state) {
  if constexpr (requires { state.seed_extragraph_; }) {
    return state.offset_intragraph_;
  } else {
    return state.capture_states_.begin()->second->offset_intragraph_;
  }
}

class CudaGraphDevice final : public GraphDevice {
 public:
  explicit CudaGraphDevice(c10::DeviceIndex device) : device_(device) {}

  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work, bool makes_room) override {
    const c10::cuda::CUDAGuard on_device(device_);
    const std::unique_lock alone(captures());
    // What the eager steps have left would otherwise stay in the way of the pool.
    if (makes_room) allocator::emptyCache();
    if (pool_users_.expired()) pool_ = at::cuda::graph_pool_handle();
    std::shared_ptr<void> user = pool_users_.lock();
    if (!user) pool_users_ = user = std::make_shared<int>();
    auto graph = std::make_unique<CudaGraph>(std::move(user));
    const std::int64_t before = reserved();
    std::exception_ptr failure;
    {
      std::optional<c10::cuda::CUDAStreamGuard> aside;  // the default stream cannot be captured
      c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
      if (stream == c10::cuda::getDefaultCUDAStream()) {
        // Always the same: a backward runs on the stream of its forward, which may be in another graph.
        aside.emplace(stream = c10::cuda::CUDAStream(own_streams(1).front()));
      }
      graph->begin(device_, pool_);
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
      c10::cuda::setCurrentCUDAStream(stream);
      try {
        graph->end(device_, pool_);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    generators_.clear();
    bytes_ += reserved() - before;
    if (failure) std::rethrow_exception(failure);
    return graph;
  }

  [[nodiscard]] bool is_capturing() const override {
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_);
    if (stream == c10::cuda::getDefaultCUDAStream(device_)) return false;  // it never is, and must not be asked
    cudaStreamCaptureStatus status{};
    C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
    return status != cudaStreamCaptureStatusNone;
  }

  std::vector<c10::Stream> branches(std::size_t count) override {
    const std::vector<c10::Stream>& own = own_streams(1 + count);
    return {own.begin() + 1, own.begin() + 1 + static_cast<std::ptrdiff_t>(count)};
  }

  void record(const c10::Event& event) override {
    C10_CUDA_CHECK(cudaEventRecordWithFlags(static_cast<cudaEvent_t>(event.eventId()),
                                            c10::cuda::getCurrentCUDAStream(device_), cudaEventRecordExternal));
  }

  at::Generator generator(const at::Tensor& seed, const at::Tensor& offset, std::uint64_t begin) override {
    auto state = state_of_capture<at::CUDAGeneratorState>(seed, offset, begin);
    at::Generator made = at::make_generator<at::CUDAGeneratorImpl>(device_, state);
    generators_.emplace_back(made, std::move(state));
    return made;
  }

  [[nodiscard]] std::uint64_t offset_of(const at::Generator& generator) const override {
    const auto own = std::find_if(generators_.begin(), generators_.end(),
                                  [&](const auto& known) { return known.first == generator; });
    TORCH_INTERNAL_ASSERT(own != generators_.end());
    return offset_in(*own->second);
  }

  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }

 private:
  [[nodiscard]] std::int64_t reserved() const {
    return allocator::getDeviceStats(device_).reserved_bytes[0].current;  // of all kinds of blocks
  }

  /// At least so many: the first in place of the default stream, the others for branches. Only captures use them, one
  /// at a time.
  [[nodiscard]] const std::vector<c10::Stream>& own_streams(std::size_t count) const {
    static std::map<c10::DeviceIndex, std::vector<c10::Stream>> all;  // by device
    std::vector<c10::Stream>& own = all[device_];
    while (own.size() < count) own.push_back(unshared_stream({c10::kCUDA, device_}, /*is_urgent=*/false));
    return own;
  }

  c10::DeviceIndex device_;
  at::cuda::MempoolId_t pool_{};
  std::weak_ptr<void> pool_users_;  // a pool without graphs is gone: the next one is another
  std::vector<std::pair<at::Generator, c10::intrusive_ptr<at::CUDAGeneratorState>>> generators_;  // of this capture
  std::int64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<GraphDevice> make_graph_device(c10::Device device) {
  return device.is_cuda() ? std::make_unique<CudaGraphDevice>(device.index()) : nullptr;
}

}  // namespace stagecraft

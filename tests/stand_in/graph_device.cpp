// Graphs of the CPU, for tests of captured steps where there is no GPU. A capture records the operators that reach the
// CPU, with the addresses of their tensors, and a replay calls them again: nothing of the host's code, and whatever is
// at those addresses by then. Linked into a program, it takes the place of the library's make_graph_device.
//
// As on a GPU:
// - a capture computes nothing: what it has made is no number, and what was there before is as it was;
// - memory is used again within a capture and by later ones, and nobody keeps what was there before;
// - what reads numbers back to the host cannot be captured;
// - operations on different streams have no order but that of events: a replay takes any that these allow, by lot.

#include "src/runtime/graph_device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <unordered_map>
#include <unordered_set>

#include "memory.h"
#include "src/runtime/tensors_in.h"
#include "streams.h"

namespace stagecraft {
namespace stand_in {
namespace {

// It comes after autograd and everything else that turns operators into others. LibTorch has it for tensors without
// data, and no kernels for it.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

using Stack = torch::jit::Stack;

const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

/// The same memory, which it does not keep alive.
at::Tensor address_of(const at::Tensor& tensor) {
  at::Tensor made = at::for_blob(tensor.mutable_data_ptr(), tensor.sizes())
                        .strides(tensor.strides())
                        .options(tensor.options().requires_grad(false))
                        .make_tensor();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (tensor.is_conj()) made._set_conj(true);
  if (tensor.is_neg()) made._set_neg(true);
  return made;
}

c10::IValue with_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(change(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& tensor : value.toTensorVector()) made.push_back(tensor.defined() ? change(tensor) : tensor);
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      made.push_back(tensor && tensor->defined() ? std::optional(change(*tensor)) : tensor);
    }
    return made;
  }
  return value;
}

bool has_tag(const c10::OperatorHandle& op, at::Tag tag) {
  const auto tags = op.getTags();
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

std::optional<std::size_t> generator_argument(const c10::OperatorHandle& op) {
  const auto& all = op.schema().arguments();
  const auto found = std::find_if(all.begin(), all.end(), [](const c10::Argument& one) {
    return one.type()->str().find("Generator") != std::string::npos;
  });
  return found != all.end() ? std::optional(static_cast<std::size_t>(found - all.begin())) : std::nullopt;
}

/// Whether it draws by calling others, which RandomScope gives their generators. Attention on the CPU does not.
bool is_made_of_draws(const c10::OperatorHandle& op) {
  return has_tag(op, at::Tag::nondeterministic_seeded) && op.schema().name().find("attention") == std::string::npos &&
         !generator_argument(op);
}

/// Needs no numbers, and LibTorch knows that.
bool compares_with_itself(const c10::OperatorHandle& op, const Stack& stack) {
  if (op.schema().name() != "aten::equal") return false;
  const auto both = torch::jit::last(stack, 2);
  return both[0].toTensor().is_alias_of(both[1].toTensor()) && both[0].toTensor().sizes() == both[1].toTensor().sizes();
}

/// One thing that a replay does.
struct Node {
  std::function<void()> run;
  Frontier after;
};

class Recording;
thread_local Recording* recording = nullptr;

class Recording final : public StreamOrder {
 public:
  explicit Recording(std::shared_ptr<Pool> pool) : pool_(std::move(pool)), scope_(pool_), origin_(current_stream_id()) {
    recording = this;
    order_of_thread() = this;
    c10::impl::tls_set_dispatch_key_included(kKey, true);
  }
  ~Recording() override {
    c10::impl::tls_set_dispatch_key_included(kKey, false);
    order_of_thread() = nullptr;
    recording = nullptr;
    at::Generator(at::detail::getDefaultCPUGenerator()).set_state(state_);
    pool_->end_capture();
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  Frontier& frontier_of(std::int64_t stream) override { return frontiers_[stream]; }

  void add(std::function<void()> run) {
    Frontier& own = frontier_of(current_stream_id());
    nodes_.push_back({std::move(run), std::exchange(own, {nodes_.size()})});
  }

  void add(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

  /// All branches have to come back to the stream where the capture began.
  std::vector<Node> take() {
    std::vector<bool> is_joined(nodes_.size(), false);
    const Frontier& end = frontier_of(origin_);
    std::vector<std::size_t> open(end.begin(), end.end());
    while (!open.empty()) {
      const std::size_t node = open.back();
      open.pop_back();
      if (is_joined[node]) continue;
      is_joined[node] = true;
      open.insert(open.end(), nodes_[node].after.begin(), nodes_[node].after.end());
    }
    TORCH_CHECK(std::find(is_joined.begin(), is_joined.end(), false) == is_joined.end(),
                "the capture has a branch that does not come back");
    return std::move(nodes_);
  }

 private:
  at::Tensor state_ = at::detail::getDefaultCPUGenerator().get_state();
  std::shared_ptr<Pool> pool_;
  PoolScope scope_;
  std::int64_t origin_;
  std::vector<Node> nodes_;
  std::map<std::int64_t, Frontier> frontiers_;  // by stream
  Frontier last_draw_;                          // from LibTorch's own generator, which goes on in this order
  /// Memory that operators have made; weak, which keeps the addresses their own.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> computed_;
};

/// What was there before a capture, so that an operator that changes it, in its schema or in secret, does not.
class Untouched {
 public:
  explicit Untouched(const at::Tensor& tensor) : storage_(tensor.storage()) {
    before_.assign(static_cast<const char*>(storage_.data()), storage_.nbytes());
  }
  ~Untouched() {
    if (std::memcmp(storage_.data(), before_.data(), before_.size()) == 0) return;
    std::memcpy(storage_.mutable_data(), before_.data(), before_.size());
  }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

 private:
  c10::Storage storage_;
  std::string before_;
};

void Recording::add(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::DispatchKeySet beyond = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (compares_with_itself(op, *stack)) return op.redispatchBoxed(beyond, stack);
  for (const at::Tag tag : {at::Tag::data_dependent_output, at::Tag::dynamic_output_shape}) {
    TORCH_CHECK(!has_tag(op, tag), op.schema().name(), " cannot be captured: the host needs what it computes");
  }
  if (is_made_of_draws(op)) return op.redispatchBoxed(beyond, stack);

  const std::size_t count = op.schema().arguments().size();
  std::unordered_set<const c10::StorageImpl*> inputs;
  std::vector<std::unique_ptr<Untouched>> given;
  auto arguments = std::make_shared<Stack>();
  for (const c10::IValue& argument : torch::jit::last(*stack, count)) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      const c10::StorageImpl* memory = memory_of(tensor);
      if (!inputs.insert(memory).second || memory == nullptr || memory->nbytes() == 0) return;
      if (!pool_->is_of_capture(tensor.storage().data())) given.push_back(std::make_unique<Untouched>(tensor));
    });
    arguments->push_back(with_tensors(argument, [&](const at::Tensor& tensor) {
      if (!tensor.is_cpu()) return tensor;  // on "meta" there is nothing to compute
      TORCH_CHECK(tensor.layout() == at::kStrided, op.schema().name(), " cannot be captured: a tensor is sparse");
      const bool is_from_host = pool_->is_of_capture(tensor.storage().data()) && !computed_.contains(memory_of(tensor));
      if (!is_from_host) return address_of(tensor);
      const OutsidePool by_value;
      const at::RecordFunctionGuard unseen(/*is_enabled=*/false);
      const c10::impl::ExcludeDispatchKeyGuard unrecorded(kKey);
      at::Tensor value = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor.detach());
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) value.unsafeGetTensorImpl()->set_wrapped_number(true);
      return value;
    }));
  }
  {
    const c10::impl::ExcludeDispatchKeyGuard once(kKey);
    op.redispatchBoxed(beyond, stack);
  }
  std::vector<std::optional<at::Tensor>> places;  // by tensor that it returns
  bool is_view = true;
  for (const c10::IValue& result : torch::jit::last(*stack, op.schema().returns().size())) {
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      const bool is_new = tensor.is_cpu() && !inputs.contains(memory_of(tensor));
      places.push_back(is_new ? std::optional(address_of(tensor)) : std::nullopt);
      if (is_new) computed_.try_emplace(memory_of(tensor), tensor.storage().getWeakStorageImpl());
      is_view = is_view && !is_new;
    });
  }
  const bool only_allocates = op.schema().name().find("empty") != std::string::npos;
  if (only_allocates || (is_view && !op.schema().is_mutable())) return;
  if (const auto generator = generator_argument(op); generator && (*arguments)[*generator].isNone()) {
    frontier_of(current_stream_id()).merge(std::exchange(last_draw_, {nodes_.size()}));
  }
  add([op, arguments, places] {
    Stack calling = *arguments;
    op.callBoxed(calling);
    auto place = places.begin();
    for (const c10::IValue& result : calling) {
      for_each_tensor(result, [&](const at::Tensor& tensor) {
        if (*place) (*place)->copy_(tensor);
        ++place;
      });
    }
  });
}

void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) { recording->add(op, keys, stack); }

void install_once() {
  static auto& library = *new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  static const bool installed = [] {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&record>());
    return true;
  }();
  (void)installed;
}

class Graph final : public DeviceGraph {
 public:
  Graph(std::shared_ptr<Pool> pool, std::vector<Node> nodes) : pool_(std::move(pool)), nodes_(std::move(nodes)) {}

  void replay() override {
    const at::AutoDispatchBelowADInplaceOrView kernels_alone;
    const at::RecordFunctionGuard unseen(/*is_enabled=*/false);
    std::vector<std::size_t> open(nodes_.size());  // how many have to come first
    std::vector<std::vector<std::size_t>> next(nodes_.size());
    std::vector<std::size_t> ready;
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      open[node] = nodes_[node].after.size();
      for (const std::size_t before : nodes_[node].after) next[before].push_back(node);
      if (open[node] == 0) ready.push_back(node);
    }
    while (!ready.empty()) {
      std::swap(ready[dice_() % ready.size()], ready.back());
      const std::size_t node = ready.back();
      ready.pop_back();
      nodes_[node].run();
      for (const std::size_t other : next[node]) {
        if (--open[other] == 0) ready.push_back(other);
      }
    }
  }

 private:
  std::shared_ptr<Pool> pool_;
  std::vector<Node> nodes_;
  std::minstd_rand dice_;
};

class CpuGraphDevice final : public GraphDevice {
 public:
  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work, bool /*makes_room*/) override {
    static std::mutex captures;
    const std::lock_guard alone(captures);
    install_once();
    std::vector<Node> nodes;
    {
      Recording own(pool_);
      work();
      nodes = own.take();
    }
    generators_.clear();
    return std::make_unique<Graph>(pool_, std::move(nodes));
  }

  [[nodiscard]] bool is_capturing() const override { return recording != nullptr; }

  std::vector<c10::Stream> branches(std::size_t count) override {
    while (branches_.size() < count) branches_.push_back(new_stream_of_cpu());
    return {branches_.begin(), branches_.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  void record(const c10::Event& event) override {
    recording->add([own = static_cast<Event*>(event.eventId())] { own->set_time(); });
  }

  /// This CPU cannot begin in the middle of a stream: offsets are the numbers of states that a replay has noted.
  at::Generator generator(const at::Tensor& seed, const at::Tensor& /*offset*/, std::uint64_t begin) override {
    at::Generator made = at::make_generator<at::CPUGeneratorImpl>();
    const auto* number = seed.const_data_ptr<std::int64_t>();
    recording->add([made, number, begin, states = states_]() mutable {
      if (begin == 0) return made.set_current_seed(static_cast<std::uint64_t>(*number));
      made.set_state(states->at(begin));
    });
    generators_.emplace_back(made, recording);
    return made;
  }

  [[nodiscard]] std::uint64_t offset_of(const at::Generator& generator) const override {
    const auto known = std::find_if(generators_.begin(), generators_.end(),
                                    [&](const auto& one) { return one.first == generator && one.second == recording; });
    TORCH_CHECK(known != generators_.end(), "the generator is of another capture");
    const std::uint64_t number = states_->size() + 1;
    states_->emplace(number, at::Tensor());
    recording->add([generator, number, states = states_] { (*states)[number] = generator.get_state(); });
    return number;
  }

  [[nodiscard]] std::int64_t bytes() const override { return pool_->bytes(); }

 private:
  using States = std::map<std::uint64_t, at::Tensor>;

  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
  std::vector<c10::Stream> branches_;
  std::vector<std::pair<at::Generator, Recording*>> generators_;  // of this capture
  std::shared_ptr<States> states_ = std::make_shared<States>();
};

}  // namespace
}  // namespace stand_in

std::unique_ptr<GraphDevice> make_graph_device(c10::Device device) {
  return device.is_cpu() ? std::make_unique<stand_in::CpuGraphDevice>() : nullptr;
}

}  // namespace stagecraft

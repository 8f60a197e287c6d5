#include "stagecraft/data_parallel/averager.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/ParallelGuard.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "buckets.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {
namespace {

/// Parameters by the stage that averages them: of the stages that have a parameter, the one started last. The tied ones
/// are at the end, as one more stage.
std::vector<NamedTensors> assigned(const std::vector<Stage>& stages, const std::vector<std::size_t>& order,
                                   const std::vector<at::Tensor>& tied) {
  std::map<const void*, std::size_t> last;
  for (const std::size_t stage : order) {
    for (const auto& [name, parameter] : stages[stage].parameters()) {
      last[parameter.unsafeGetTensorImpl()] = stage;
    }
  }
  std::vector<NamedTensors> parameters(stages.size() + 1);
  for (const at::Tensor& tensor : tied) {
    if (last.erase(tensor.unsafeGetTensorImpl()) > 0) parameters.back().emplace_back("a tied parameter", tensor);
  }
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (const auto& [name, parameter] : stages[stage].parameters()) {
      const auto found = last.find(parameter.unsafeGetTensorImpl());
      if (found == last.end() || found->second != stage) continue;
      parameters[stage].emplace_back(name, parameter);
      last.erase(found);  // once, also within a stage
    }
  }
  return parameters;
}

}  // namespace

class Averager::Implementation {
 public:
  Implementation(std::unique_ptr<Group> peers, const std::vector<Stage>& stages, const std::vector<std::size_t>& order,
                 std::int64_t bucket_bytes, at::Device device, const std::vector<at::Tensor>& tied)
      : peers_(std::move(peers)),
        stages_(stages),
        tied_(tied),
        parameters_(assigned(stages, order, tied)),
        sent_buffers_(stages.size()),
        bucket_bytes_(bucket_bytes),
        device_(device),
        is_started_(stages.size() + 1, false) {
    for (const Stage& stage : stages) {
      purposes_.push_back("the average of the gradients of stage " + std::to_string(stage.index().value));
    }
    purposes_.emplace_back("the average of the gradients of tied parameters");
    if (!device_.is_cpu()) stream_ = new_stream(device_);
    thread_ = std::thread([this] { work(); });
  }

  ~Implementation() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void make_equal() {
    const at::NoGradGuard no_grad;
    for (const Stage& stage : stages_) {
      const std::string what = "the first weights of stage " + std::to_string(stage.index().value);
      const auto during = peers_->during(what);
      for (const NamedTensors* tensors : {&stage.parameters(), &stage.buffers()}) {
        for (const auto& [name, tensor] : *tensors) {
          if (tensor.defined()) peers_->broadcast_into(tensor, 0);
        }
      }
    }
  }

  /// The thread is idle, and uses the new order from the next task on.
  void reorder(const std::vector<std::size_t>& order) {
    const std::lock_guard lock(mutex_);
    parameters_ = assigned(stages_, order, tied_);
  }

  void start(std::size_t stage) {
    Task task{stage, {}};
    if (stream_) task.computed.emplace_back(device_.type()).record(current_stream(device_));
    {
      const std::lock_guard lock(mutex_);
      if (is_idle()) records_.clear();
      is_started_[stage] = true;
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }

  void finish() {
    if (is_idle()) records_.clear();
    const double begin = seconds_now();
    const std::exception_ptr failure = rest();
    for (Record& record : records_) record.waited = std::max(0.0, record.end - std::max(record.start, begin));
    if (failure) std::rethrow_exception(failure);
    if (stream_) run_after(current_stream(device_), *stream_);
  }

  void average_tied() {
    const std::vector<Record> of_stages = std::move(records_);
    start(stages_.size());
    finish();
    records_ = of_stages;
  }

  void cancel() { rest(); }

  std::vector<Record> records_;  // guarded by mutex_ while tasks are in flight

 private:
  struct Task {
    std::size_t stage;
    std::vector<c10::Event> computed;  // on a device with streams
  };

  [[nodiscard]] bool is_idle() const {
    return std::none_of(is_started_.begin(), is_started_.end(), [](bool started) { return started; });
  }

  /// Waits until nothing is in flight. Returns the error, if any.
  std::exception_ptr rest() {
    std::unique_lock lock(mutex_);
    // If another rank times out on this one, it should look at what the averaging thread waits for.
    peers_->set_resting(true);
    changed_.wait(lock, [&] { return tasks_.empty() && !is_busy_; });
    peers_->set_resting(false);
    is_started_.assign(is_started_.size(), false);
    return std::exchange(failure_, nullptr);
  }

  // --- in the thread ---

  void work() {
    const c10::ParallelGuard alone(true);  // one thread: the cores belong to the schedule
    const at::NoGradGuard no_grad;
    const c10::OptionalDeviceGuard device(device_);
    std::optional<c10::StreamGuard> guard;
    if (stream_) guard.emplace(*stream_);
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_over_ || !tasks_.empty(); });
      if (is_over_) return;
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      const bool in_vain = failure_ != nullptr;
      is_busy_ = true;
      lock.unlock();
      std::exception_ptr failure;
      Record record{task.stage, seconds_now(), 0, 0, 0};
      try {
        for (const c10::Event& event : task.computed) event.block(*stream_);
        if (!in_vain) average(task.stage, record);
      } catch (...) {
        failure = explained(task.stage);
      }
      record.end = seconds_now();
      lock.lock();
      is_busy_ = false;
      if (failure) failure_ = failure;
      records_.push_back(record);
      changed_.notify_all();
    }
  }

  /// The current exception, with the stage added to its text.
  [[nodiscard]] std::exception_ptr explained(std::size_t stage) const {
    const std::string whose =
        stage < stages_.size() ? "stage " + std::to_string(stages_[stage].index().value) : "tied parameters";
    const std::string where = " (while the gradients of " + whose + " were averaged over the replicas)";
    try {
      throw;
    } catch (const AbortedError& error) {
      return std::make_exception_ptr(AbortedError(error.what() + where, error.peer()));
    } catch (const TimeoutError& error) {
      return std::make_exception_ptr(TimeoutError(error.what() + where, error.peer()));
    } catch (const c10::Error& error) {
      return std::make_exception_ptr(InvalidArgument(error.what_without_backtrace() + where));
    } catch (const std::exception& error) {
      return std::make_exception_ptr(InvalidArgument(error.what() + where));
    } catch (...) {
      return std::make_exception_ptr(Error(kUnknownException + where));
    }
  }

  void average(std::size_t stage, Record& record) {
    const auto during = peers_->during(purposes_[stage]);
    const std::vector<at::Tensor> gradients = gradients_of(stage);
    record.start = seconds_now();  // all replicas have started it
    Buckets buckets(*peers_, bucket_bytes_);
    for (const at::Tensor& gradient : gradients) {
      record.bytes += static_cast<std::int64_t>(gradient.nbytes());
      buckets.add(gradient);
    }
    buckets.close();
    if (stage < stages_.size()) spread_buffers(stage);
  }

  /// Gradients that some replica has; zeros where this one has none.
  std::vector<at::Tensor> gradients_of(std::size_t stage) {
    const NamedTensors& parameters = parameters_[stage];
    if (parameters.empty()) return {};
    std::string own(parameters.size(), '0');
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& gradient = parameters[i].second.grad();
      if (!gradient.defined()) continue;
      own[i] = '1';
      if (!gradient.is_sparse()) continue;
      throw InvalidArgument("the gradient of " + parameters[i].first +
                            " is sparse, and replicas average dense ones: make the layer with sparse(false)");
    }
    std::string some = own;
    for (const Message& message : peers_->all_gather(Message{{}, own})) {
      for (std::size_t i = 0; i < some.size(); ++i) {
        if (message.header.at(i) == '1') some[i] = '1';
      }
    }
    std::vector<at::Tensor> gradients;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (some[i] == '0') continue;
      at::Tensor& gradient = parameters[i].second.mutable_grad();
      if (!gradient.defined()) {
        gradient = at::zeros_like(parameters[i].second);
        if (stream_) {
          c10::impl::VirtualGuardImpl(device_.type())
              .recordDataPtrOnStream(gradient.storage().data_ptr(), current_stream(device_));
        }
      }
      gradients.push_back(gradient.detach());
    }
    return gradients;
  }

  /// Replica 0 broadcasts the buffers that have changed since the last time. Their values are compared, because kernels
  /// update statistics without changing the version counter.
  void spread_buffers(std::size_t stage) {
    constexpr std::size_t kAtOnce = 256;  // the most that one message can describe
    const NamedTensors& buffers = stages_[stage].buffers();
    std::vector<at::Tensor>& sent = sent_buffers_[stage];
    sent.resize(buffers.size());
    for (std::size_t begin = 0; begin < buffers.size(); begin += kAtOnce) {
      const std::size_t end = std::min(begin + kAtOnce, buffers.size());
      Message changed;
      for (std::size_t i = begin; i < end && peers_->place() == 0; ++i) {
        const at::Tensor& buffer = buffers[i].second;
        at::Tensor& copy = changed.tensors.emplace_back();
        if (!buffer.defined() || (sent[i].defined() && at::equal(sent[i], buffer))) continue;
        copy = sent[i] = buffer.detach().clone();
      }
      const Message news = peers_->broadcast(std::move(changed), 0);
      for (std::size_t i = begin; i < end && peers_->place() != 0; ++i) {
        const at::Tensor& value = news.tensors.at(i - begin);
        if (value.defined()) buffers[i].second.detach().copy_(value);
      }
    }
  }

  std::unique_ptr<Group> peers_;
  const std::vector<Stage>& stages_;
  std::vector<at::Tensor> tied_;
  std::vector<NamedTensors> parameters_;               // by stage, then the tied ones
  std::vector<std::vector<at::Tensor>> sent_buffers_;  // by stage
  std::vector<std::string> purposes_;                  // by stage
  std::int64_t bucket_bytes_;
  at::Device device_;
  std::optional<c10::Stream> stream_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::vector<bool> is_started_;
  bool is_busy_ = false;
  bool is_over_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

Averager::Averager(std::unique_ptr<Group> peers, const std::vector<Stage>& stages,
                   const std::vector<std::size_t>& order, std::int64_t bucket_bytes, at::Device device,
                   const std::vector<at::Tensor>& tied)
    : implementation_(std::make_unique<Implementation>(std::move(peers), stages, order, bucket_bytes, device, tied)) {}
Averager::~Averager() = default;
void Averager::make_equal() { implementation_->make_equal(); }
void Averager::reorder(const std::vector<std::size_t>& order) { implementation_->reorder(order); }
void Averager::start(std::size_t stage) { implementation_->start(stage); }
void Averager::finish() { implementation_->finish(); }
void Averager::average_tied() { implementation_->average_tied(); }
void Averager::cancel() { implementation_->cancel(); }
const std::vector<Averager::Record>& Averager::records() const { return implementation_->records_; }

}  // namespace stagecraft

#include "stagecraft/data_parallel/averager.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "beside_thread.h"
#include "buckets.h"
#include "presence.h"
#include "replica_buffers.h"
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
        buffers_(*peers_, stages),
        bucket_bytes_(bucket_bytes),
        device_(device),
        beside_(*peers_, device) {
    for (const Stage& stage : stages) {
      purposes_.push_back("the average of the gradients of stage " + std::to_string(stage.index().value));
    }
    purposes_.emplace_back("the average of the gradients of tied parameters");
  }

  void make_equal() { make_stages_equal(*peers_, stages_); }

  /// The thread is idle, and uses the new order from the next task on.
  void reorder(const std::vector<std::size_t>& order) { parameters_ = assigned(stages_, order, tied_); }

  void start(std::size_t stage) {
    if (beside_.is_idle()) records_.clear();
    const std::string whose =
        stage < stages_.size() ? "stage " + std::to_string(stages_[stage].index().value) : "tied parameters";
    beside_.start("while the gradients of " + whose + " were averaged over the replicas", [this, stage] {
      BesideRecord record{BesideRecord::Kind::kReduction, stage, seconds_now(), 0, 0, 0};
      average(stage, record);
      record.end = seconds_now();
      const std::lock_guard lock(mutex_);
      records_.push_back(record);
    });
  }

  void finish() {
    if (beside_.is_idle()) records_.clear();
    const double begin = seconds_now();
    beside_.finish();
    note_wait(records_, begin);
  }

  void average_tied() {
    const std::vector<BesideRecord> of_stages = std::move(records_);
    start(stages_.size());
    finish();
    records_ = of_stages;
  }

  void spread_buffers() {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) buffers_.spread(stage);
  }

  void cancel() { beside_.rest(); }

  std::vector<BesideRecord> records_;  // guarded by mutex_ while tasks are in flight

 private:
  // --- in the thread ---

  void average(std::size_t stage, BesideRecord& record) {
    const auto during = peers_->during(purposes_[stage]);
    const std::vector<at::Tensor> gradients = gradients_of(stage);
    record.start = seconds_now();  // all replicas have started it
    Buckets buckets(*peers_, bucket_bytes_);
    for (const at::Tensor& gradient : gradients) {
      record.bytes += static_cast<std::int64_t>(gradient.nbytes());
      buckets.add(gradient);
    }
    buckets.close();
    if (stage < stages_.size()) buffers_.spread(stage);
  }

  /// Gradients that some replica has; zeros where this one has none.
  std::vector<at::Tensor> gradients_of(std::size_t stage) {
    const NamedTensors& parameters = parameters_[stage];
    if (parameters.empty()) return {};
    Presence present;
    for (const auto& [name, parameter] : parameters) present.add(name, parameter.grad());
    present.share(*peers_);
    std::vector<at::Tensor> gradients;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!present[i]) continue;
      at::Tensor& gradient = parameters[i].second.mutable_grad();
      if (!gradient.defined()) {
        gradient = at::zeros_like(parameters[i].second);
        if (beside_.stream()) {
          c10::impl::VirtualGuardImpl(device_.type())
              .recordDataPtrOnStream(gradient.storage().data_ptr(), current_stream(device_));
        }
      }
      gradients.push_back(gradient.detach());
    }
    return gradients;
  }

  std::unique_ptr<Group> peers_;
  const std::vector<Stage>& stages_;
  std::vector<at::Tensor> tied_;
  std::vector<NamedTensors> parameters_;  // by stage, then the tied ones
  ReplicaBuffers buffers_;
  std::vector<std::string> purposes_;  // by stage
  std::int64_t bucket_bytes_;
  at::Device device_;

  std::mutex mutex_;
  BesideThread beside_;  // the last: its tasks use all others
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
void Averager::spread_buffers() { implementation_->spread_buffers(); }
void Averager::cancel() { implementation_->cancel(); }
const std::vector<BesideRecord>& Averager::records() const { return implementation_->records_; }

}  // namespace stagecraft

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/data_parallel/beside_record.h"
#include "stagecraft/data_parallel/shard.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/group.h"

namespace stagecraft {

struct MasterOptions {
  /// What replicas share.
  Shard shard = Shard::kNone;
  /// What modules compute with, where it differs from the masters.
  std::function<std::optional<at::ScalarType>(const std::string& name)> compute = {};
  /// The type of the masters, where it differs from the modules' parameters.
  std::optional<at::ScalarType> type = {};
  /// The type in which gradients are sent.
  std::optional<at::ScalarType> reduce = {};
  std::int64_t bucket_bytes = 16 << 20;
};

/// What the optimizer updates, if that is not what modules compute with: masters of another type, or only this
/// replica's part of every parameter. The modules' own parameters are made from the masters of all replicas by
/// `unshard`, and their gradients go to the masters by `reduce`. See docs/design/sharding.md and precision.md.
///
/// All replicas make the same calls in the same order. Communication runs in a thread beside the schedule.
class Masters {
 public:
  /// `peers` has one member per replica. `order`: indices into `stages`, in the order in which their gradients will be
  /// complete. `tied`: parameters that are reduced by themselves. The stages must outlive it.
  Masters(std::unique_ptr<Group> peers, const std::vector<Stage>& stages, const std::vector<std::size_t>& order,
          const MasterOptions& options, at::Device device, const std::vector<at::Tensor>& tied = {});
  /// With kParameters, the module's own parameters stay without memory.
  ~Masters();
  Masters(const Masters&) = delete;
  Masters& operator=(const Masters&) = delete;

  /// Sets parameters and buffers to those of replica 0, and makes the masters. Called once, before anything else.
  void make_equal();
  void reorder(const std::vector<std::size_t>& order);

  /// One for every parameter of the stages, under its name. Sharded, it is this replica's part as a vector, perhaps
  /// empty.
  [[nodiscard]] const NamedTensors& tensors() const;
  /// Whether masters are parts of parameters.
  [[nodiscard]] bool are_parts() const;

  /// Called before a step, also of evaluation. If masters may have changed since the last one, parameters are made from
  /// them before they are used again.
  void begin_step(bool masters_may_have_changed);
  /// Starts making the parameters of a stage.
  void unshard(std::size_t stage);
  /// Waits until the parameters of a stage are there; makes them, if `unshard` was not called, until `release`. Returns
  /// how many seconds it waited.
  double require(std::size_t stage);
  /// The stage is not needed until the next `unshard`: with kParameters its memory is freed.
  void reshard(std::size_t stage);
  /// Called at the end of a step: reshards all stages.
  void release();

  /// Called after every backward of a stage: where masters are of another type, its gradients are added to sums of that
  /// type.
  void collect(std::size_t stage);
  /// Where the gradient of one of the stages' parameters is added up on this replica, until it is reduced.
  [[nodiscard]] at::Tensor& gradient_of(const at::Tensor& parameter);
  /// Zeros like that gradient.
  [[nodiscard]] at::Tensor zero_gradient_of(const at::Tensor& parameter) const;
  /// Called when the gradients of a stage are complete, or for the index after the last stage those of tied parameters:
  /// starts adding their averages to the masters' gradients. The module's own gradients are gone then.
  void reduce(std::size_t stage);
  /// Waits for all that was started, and throws the error of any.
  void finish();
  /// See Averager::spread_buffers.
  void spread_buffers();
  /// Called after a failure elsewhere: waits until the thread is idle, and forgets the step and its error.
  void cancel();
  /// Drops the gradients that the module's own parameters have.
  void drop_gradients();

  /// The master of one of the stages' parameters.
  [[nodiscard]] at::Tensor master_of(const at::Tensor& parameter) const;
  /// Whether a tensor is one of the masters.
  [[nodiscard]] bool has(const at::Tensor& tensor) const;
  /// The shape of the whole parameter.
  [[nodiscard]] at::IntArrayRef sizes_of(const at::Tensor& master) const;
  /// The whole tensor whose part on every replica is `part`, a tensor like the master. Called by all replicas.
  [[nodiscard]] at::Tensor whole_of(const at::Tensor& master, const at::Tensor& part) const;
  /// This replica's part of a tensor like the whole parameter.
  [[nodiscard]] at::Tensor part_of(const at::Tensor& master, const at::Tensor& whole) const;

  /// What the thread did in the last step, if there are other replicas.
  [[nodiscard]] const std::vector<BesideRecord>& records() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft

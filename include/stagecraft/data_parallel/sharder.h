#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stagecraft/data_parallel/averager.h"
#include "stagecraft/data_parallel/shard.h"

namespace stagecraft {

/// Shards the parameters of this rank's stages over their replicas. The optimizer updates the *masters*, this replica's
/// part of every parameter; the module's own parameters are made from the masters of all replicas by `unshard`, and
/// their gradients go to the masters by `reduce`. See docs/design/sharding.md.
///
/// All replicas make the same calls in the same order. Communication runs in a thread beside the schedule.
class Sharder {
 public:
  /// `peers` has one member per replica. `order`: indices into `stages`, in the order in which their gradients will be
  /// complete. `tied`: parameters that are reduced by themselves. The stages must outlive it.
  Sharder(std::unique_ptr<Group> peers, const std::vector<Stage>& stages, const std::vector<std::size_t>& order,
          Shard kind, std::int64_t bucket_bytes, at::Device device, const std::vector<at::Tensor>& tied = {});
  /// With kParameters, the module's own parameters stay without memory.
  ~Sharder();
  Sharder(const Sharder&) = delete;
  Sharder& operator=(const Sharder&) = delete;

  /// Sets parameters and buffers to those of replica 0, and makes the masters. Called once, before anything else.
  void make_equal();
  void reorder(const std::vector<std::size_t>& order);

  /// One for every parameter of the stages, under its name: this replica's part as a vector, perhaps empty.
  [[nodiscard]] const NamedTensors& masters() const;

  /// Called before a step, also of evaluation. If masters may have changed since the last one, parameters are gathered
  /// before they are used again.
  void begin_step(bool masters_may_have_changed);
  /// Starts gathering the parameters of a stage.
  void unshard(std::size_t stage);
  /// Waits until the parameters of a stage are there; gathers them, if `unshard` was not called, until `release`.
  void require(std::size_t stage);
  /// The stage is not needed until the next `unshard`: with kParameters its memory is freed.
  void reshard(std::size_t stage);
  /// Called at the end of a step: reshards all stages.
  void release();

  /// Called when the gradients of a stage are complete, or for the index after the last stage those of tied parameters:
  /// starts adding their averages to the masters' gradients. The module's own gradients are gone then.
  void reduce(std::size_t stage);
  /// Waits for all that was started, and throws the error of any.
  void finish();
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
  /// The whole tensor whose part on every replica is `part`, a vector like the master. Called by all replicas.
  [[nodiscard]] at::Tensor whole_of(const at::Tensor& master, const at::Tensor& part) const;
  /// This replica's part of a tensor like the whole parameter.
  [[nodiscard]] at::Tensor part_of(const at::Tensor& master, const at::Tensor& whole) const;

  /// See Averager::records.
  [[nodiscard]] const std::vector<Averager::Record>& records() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft

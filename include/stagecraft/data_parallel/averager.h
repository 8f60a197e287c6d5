#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "stagecraft/data_parallel/beside_record.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/group.h"

/// Data parallelism: copies of a stage on several ranks.
namespace stagecraft {

/// Averages the gradients of this rank's stages over their replicas, in a thread of its own beside the schedule.
///
/// All replicas start the same stages in the same order. Gradients accumulated before are the same on all replicas, and
/// stay so. A parameter that has no gradient on some replicas counts as zero there; if it has none on all, it gets
/// none. Afterwards all replicas have the buffers of replica 0.
class Averager {
 public:
  /// `peers` has one member per replica. `order`: indices into `stages`, in the order in which they will be started; a
  /// parameter of several stages is averaged with the last of them. Gradients smaller than a bucket are sent together.
  /// `tied`: parameters that `average_tied` averages, instead of their stages.
  Averager(std::unique_ptr<Group> peers, const std::vector<Stage>& stages, const std::vector<std::size_t>& order,
           std::int64_t bucket_bytes, at::Device device, const std::vector<at::Tensor>& tied = {});
  ~Averager();
  Averager(const Averager&) = delete;
  Averager& operator=(const Averager&) = delete;

  /// Sets parameters and buffers to those of replica 0.
  void make_equal();

  /// Changes the order in which stages will be started. Called between two steps, on all replicas.
  void reorder(const std::vector<std::size_t>& order);

  /// Called when the gradients of a stage are complete: starts averaging them. Nobody else may use them until `finish`.
  void start(std::size_t stage);
  /// Waits for all stages that were started, and throws the error of any.
  void finish();
  /// Averages the gradients of all tied parameters. Called on all replicas, while nothing else is in flight.
  void average_tied();
  /// Gives all replicas the buffers of replica 0, where a step has not averaged gradients. Called on all replicas,
  /// while nothing else is in flight.
  void spread_buffers();
  /// Called after a failure elsewhere: waits until the thread is idle, and forgets the step and its error.
  void cancel();

  /// The averages of the last step, in the order of `start`.
  [[nodiscard]] const std::vector<BesideRecord>& records() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft

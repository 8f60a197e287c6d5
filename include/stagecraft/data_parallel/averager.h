#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/group.h"

/// Copies of a stage on several ranks that train as one.
namespace stagecraft {

/// Averages the gradients of this rank's stages over their replicas, in a thread of its own beside the schedule.
///
/// All replicas start the same stages in the same order. What earlier steps have left in the gradients is the same on
/// all, and stays. A parameter without a gradient on some replicas counts as zero there; without one on all, it stays
/// without. Buffers are those of replica 0 afterwards.
class Averager {
 public:
  /// `peers` has one member per replica. `order`: places in `stages`, in the order in which they will be started: a
  /// parameter of several of them is averaged with the last. Gradients smaller than a bucket travel together. `tied`:
  /// parameters that are averaged by `average_tied`, not with their stages.
  Averager(std::unique_ptr<Group> peers, const std::vector<Stage>& stages, const std::vector<std::size_t>& order,
           std::int64_t bucket_bytes, at::Device device, const std::vector<at::Tensor>& tied = {});
  ~Averager();
  Averager(const Averager&) = delete;
  Averager& operator=(const Averager&) = delete;

  /// Parameters and buffers become those of replica 0.
  void make_equal();

  /// Between two steps: from now on, stages are started in another order. On all replicas alike.
  void reorder(const std::vector<std::size_t>& order);

  /// The gradients of a stage are complete: averaging begins, and nobody else touches them until it has ended.
  void start(std::size_t stage);
  /// Waits for all that were started, and throws what went wrong.
  void finish();
  /// Averages the gradients of the tied parameters, all at once, when nothing else is under way. On all replicas alike.
  void average_tied();
  /// After a failure elsewhere: waits until the thread is at rest, and forgets.
  void cancel();

  /// When a stage was averaged, from where all replicas had come to it, in seconds on the steady clock.
  struct Record {
    std::size_t stage;
    double start;
    double end;
    double waited;  ///< Of that, how long `finish` waited for it.
    std::int64_t bytes;
  };
  /// Of the last step, in the order in which they were started.
  [[nodiscard]] const std::vector<Record>& records() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft

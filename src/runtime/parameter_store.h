#pragma once

#include <cstddef>
#include <vector>

#include "stagecraft/data_parallel/averager.h"

namespace stagecraft {

/// What UNSHARD, RESHARD and REDUCE_GRAD do, and what happens to gradients around a step. The executor knows nothing
/// else of replicas, shards and ties. Stages go by their places among the rank's own. One thread uses it.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  /// Before the first step, on all ranks: copies of a parameter become equal.
  virtual void make_equal() = 0;
  /// Between two steps: the order in which the gradients of stages will be complete.
  virtual void set_order(const std::vector<std::size_t>& completion_order) = 0;

  virtual void begin_step() = 0;
  virtual void unshard(std::size_t stage) = 0;
  virtual void reshard(std::size_t stage) = 0;
  /// The gradients of the stage are complete: reducing them begins, and nobody else touches them until `end_step`.
  virtual void reduce_gradients(std::size_t stage) = 0;
  /// Reduces the stages that the schedule does not, and waits for all that was begun.
  virtual void end_step(const std::vector<std::size_t>& never_reduced) = 0;
  /// After a failure: waits until nothing is under way, and forgets the step.
  virtual void cancel() = 0;

  /// The reductions of the last step that ran beside the schedule.
  [[nodiscard]] virtual const std::vector<Averager::Record>& records() const = 0;
};

}  // namespace stagecraft

#pragma once

#include <cstddef>
#include <vector>

#include "stagecraft/data_parallel/averager.h"

namespace stagecraft {

/// Implements UNSHARD, RESHARD and REDUCE_GRAD, and what happens to gradients around a step. The executor knows nothing
/// else of replicas, shards and ties. Stages are given by index among the rank's own. Used by one thread.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  /// Called on all ranks before the first step: makes all copies of a parameter equal.
  virtual void make_equal() = 0;
  /// Called between two steps: sets the order in which the gradients of stages will be complete.
  virtual void set_order(const std::vector<std::size_t>& completion_order) = 0;

  virtual void begin_step() = 0;
  virtual void unshard(std::size_t stage) = 0;
  virtual void reshard(std::size_t stage) = 0;
  /// Called when the gradients of the stage are complete: starts reducing them. Nobody else may use them until
  /// `end_step`.
  virtual void reduce_gradients(std::size_t stage) = 0;
  /// Reduces the stages that the schedule does not reduce, and waits for all reductions.
  virtual void end_step(const std::vector<std::size_t>& never_reduced) = 0;
  /// Called after a failure: waits until no reduction is in flight, and forgets the step.
  virtual void cancel() = 0;

  /// The reductions of the last step that ran beside the schedule.
  [[nodiscard]] virtual const std::vector<Averager::Record>& records() const = 0;
};

}  // namespace stagecraft

#pragma once

#include <cstddef>
#include <vector>

#include "stagecraft/data_parallel/masters.h"

namespace stagecraft {

/// Implements UNSHARD, RESHARD and REDUCE_GRAD, and what happens to gradients around a step. The executor knows nothing
/// else of replicas, shards, masters and ties. Stages are given by index among the rank's own. Used by one thread.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  /// Called on all ranks before the first step: makes all copies of a parameter equal.
  virtual void make_equal() = 0;
  /// Called between two steps: sets the order in which the gradients of stages will be complete.
  virtual void set_order(const std::vector<std::size_t>& completion_order) = 0;

  /// What the optimizer updates, by name; each once.
  [[nodiscard]] virtual NamedTensors parameters() const = 0;
  /// What the optimizer updates for one of the stages' parameters.
  [[nodiscard]] virtual at::Tensor master_of(const at::Tensor& parameter) const { return parameter; }
  /// An optimizer of the parameters was checked.
  virtual void set_attached() {}
  /// Null if the optimizer updates the modules' own parameters.
  [[nodiscard]] virtual const Masters* masters() const { return nullptr; }

  /// A step among those whose gradients are added up for one update of the parameters.
  struct Step {
    bool training = true;
    bool is_first = true;
    bool is_last = true;
    bool only_forward = false;  // in training mode: it may change buffers
  };
  virtual void begin_step(const Step& step) = 0;
  virtual void unshard(std::size_t stage) = 0;
  virtual void reshard(std::size_t stage) = 0;
  /// Called before every computation of the stage: returns when its parameters are there, how many seconds it waited.
  virtual double require(std::size_t stage) = 0;
  /// Called after every backward of the stage that may have made gradients of its parameters.
  virtual void collect_gradients(std::size_t stage) = 0;
  /// Called when the gradients of the stage are complete: starts reducing them, if the step is the last. Nobody else
  /// may use them until `end_step`.
  virtual void reduce_gradients(std::size_t stage) = 0;
  /// Reduces the stages that the schedule does not reduce, and waits for all reductions.
  virtual void end_step(const std::vector<std::size_t>& never_reduced) = 0;
  /// Called after a failure: waits until no reduction is in flight, and forgets the step.
  virtual void cancel() = 0;

  /// Whether parameters stay where they are, from step to step. Computations can then be captured, with UNSHARD between
  /// the graphs, REDUCE_GRAD after the last, and no RESHARD.
  [[nodiscard]] virtual bool keeps_memory() const = 0;
  /// Whether other ranks read the gradients.
  [[nodiscard]] virtual bool has_replicas() const = 0;
  /// Where the gradient of one of the stages' parameters is added up between two actions of a step.
  virtual at::Tensor& gradient_of(const at::Tensor& parameter) { return parameter.mutable_grad(); }

  /// What ran beside the schedule in the last step.
  [[nodiscard]] virtual const std::vector<BesideRecord>& records() const = 0;
};

}  // namespace stagecraft

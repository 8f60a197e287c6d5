#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

/// The backward of one forward: whole, or in two parts at different times.
namespace stagecraft {

class SplitPlan;

/// Knows how to cut the graphs of one stage into an input part and a weight part. Learns it from the first graph and
/// reuses it for graphs of the same shape; learns again from a graph of another shape. Not thread safe.
class BackwardPlanner {
 public:
  BackwardPlanner();
  ~BackwardPlanner();
  BackwardPlanner(BackwardPlanner&&) noexcept;
  BackwardPlanner& operator=(BackwardPlanner&&) noexcept;

  /// Graphs analysed so far.
  [[nodiscard]] int times_learnt() const;

 private:
  friend class Backward;
  std::unique_ptr<SplitPlan> plan_;
};

/// The backward of one forward. Holds the graph, not the outputs, which may be released, viewed or sent.
///
///   Backward backward(outputs, inputs);            // after the forward
///   gradients = backward.full(output_gradients);   // everything, or
///
///   gradients = backward.input_part(output_gradients, planner);   // only what the stage before needs
///   backward.weight_part();                                       // some time later: the weights' .grad
///
/// The input part does not touch the weights' .grad, and frees the part of the graph that the weight part does not
/// need. Whole or split, the weights get the same gradients, bit for bit, and each weight's hooks run once.
class Backward {
 public:
  /// Nothing to do.
  Backward() = default;
  /// `outputs`: undefined ones, and ones without a graph, get no gradient. `inputs`: leaves; those that do not require
  /// a gradient get none.
  Backward(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs) { reset(outputs, inputs); }
  /// As if it were made anew, in the memory that it has.
  void reset(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs);

  /// Accumulates into the weights' .grad and returns a gradient per input, undefined where there is none. `gradients`
  /// has one per output; an undefined one means that nothing came back. The graph is released.
  std::vector<at::Tensor> full(const std::vector<at::Tensor>& gradients);

  /// The same at a moment that `around` chooses: it is given a function that runs the backward, and calls it once. It
  /// may instead compute the same gradients in its own way, added to the .grad of the inputs and weights. Throws
  /// InvalidArgument when it calls the function twice, or when no input has got a gradient though one needs it.
  std::vector<at::Tensor> full_within(const std::vector<at::Tensor>& gradients,
                                      const std::function<void(const std::function<void()>& backward)>& around);

  /// Returns the gradients of the inputs, like `full`, and leaves those of the weights to `weight_part`.
  std::vector<at::Tensor> input_part(const std::vector<at::Tensor>& gradients, BackwardPlanner& planner);

  /// Completes an input part. Throws InvalidArgument when there was none, or when it is complete already.
  void weight_part();

  /// Whether an input part waits for its weight part.
  [[nodiscard]] bool awaits_weight_part() const { return state_ == State::kSplit; }
  /// Whether neither `full` nor `input_part` has run.
  [[nodiscard]] bool is_pending() const { return state_ == State::kPending; }

 private:
  enum class State { kEmpty, kPending, kSplit, kDone };

  void require_pending(const std::vector<at::Tensor>& gradients) const;
  void run(const std::vector<at::Tensor>& gradients) const;
  std::vector<at::Tensor> take_input_gradients();

  State state_ = State::kEmpty;
  std::vector<torch::autograd::Edge> roots_;  // per output; after an input part: where the weight part starts
  std::vector<at::Tensor> root_gradients_;    // after an input part
  std::vector<at::Tensor> inputs_;
};

/// One backward from tensors inside the user's own graph, with these gradients.
void accumulate_into(std::span<const at::Tensor> tensors, const std::vector<at::Tensor>& gradients);

}  // namespace stagecraft

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/core/ids.h"
#include "stagecraft/stage/tensor_spec.h"
#include "stagecraft/stage/value.h"

/// A piece of a model: what a rank computes for one stage.
namespace stagecraft {

/// One forward of a stage.
struct StageCall {
  StageId stage;
  MicrobatchId microbatch;
  /// Positional inputs: the user's on a first stage, elsewhere what the edges bring.
  const ValueList& arguments;
  /// Keyword inputs of this step that are meant for this stage, cut to this microbatch.
  const ValueDict& keywords;

  /// Throws InvalidArgument when there are fewer arguments, or when it is not a tensor.
  [[nodiscard]] const at::Tensor& tensor(std::size_t argument) const;
  /// Throws InvalidArgument when there are more: a module would lose the rest in silence.
  void require_at_most(std::size_t count) const;
  /// The keyword's value; none when it was not given.
  [[nodiscard]] Value keyword(std::string_view name) const;
};

/// Which stage and microbatch this thread computes at the moment; -1 outside of a forward. For modules that want to
/// know, such as a router that keeps statistics per microbatch.
struct Whereabouts {
  StageId stage{-1};
  MicrobatchId microbatch{-1};
};
Whereabouts whereabouts();

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
/// Names, types, shapes and whether they are trained: "96 numbers, hash 1f2e".
std::string fingerprint_of(const NamedTensors& tensors);

struct StageOptions {
  /// Run the whole backward in the input part; for stages whose graph must not be walked twice.
  bool full_backward = false;
  /// Give the stage private copies of its inputs, so that it may work on them in place.
  bool copy_inputs = false;
  /// What the tensors among the positional inputs, and among the outputs, must look like, in order; checked for every
  /// microbatch. Empty: anything goes.
  std::vector<TensorSpec> inputs = {};
  std::vector<TensorSpec> outputs = {};
  /// Added to the loss, each stage its own: a scalar made from the outputs, weighted like the loss.
  std::function<at::Tensor(const Value& output)> auxiliary_loss = {};
  /// For layers that compute weight gradients themselves: called right after the autograd backward of a microbatch, it
  /// returns the work that the weight part (or the full backward, at once) runs.
  std::function<std::function<void()>()> deferred_weights = {};
  /// Names of buffers that checkpoints leave out: tables that the stage makes anyway.
  std::vector<std::string> not_saved = {};
  /// Further names of parameters, each with the one that the stage knows it by, as a model has that uses one weight in
  /// two places: checkpoints have it under all of them, and want one.
  std::vector<std::pair<std::string, std::string>> other_names = {};
  /// For a Sequential, the position of its first layer in the whole model. Each layer then draws its own random
  /// numbers, the same however the model is cut (see RandomLayer). -1: they are those of the stage.
  std::int64_t first_layer = -1;
  /// What the stage was cut from and how, in a few words; ranks compare it before the first step. Empty: unknown.
  std::string origin = {};
};

/// Any callable with parameters. Moves; the tensors inside are shared with whoever made them.
class Stage {
 public:
  using Forward = std::function<Value(const StageCall&)>;

  /// Switches to evaluation, and returns what switches back.
  using EnterEvaluation = std::function<std::function<void()>()>;

  /// `enter_evaluation` may be empty: the stage then does not distinguish training from evaluation.
  Stage(int index, Forward forward, NamedTensors parameters, NamedTensors buffers = {},
        EnterEvaluation enter_evaluation = {}, StageOptions options = {});

  [[nodiscard]] StageId index() const { return index_; }
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  [[nodiscard]] const NamedTensors& buffers() const { return buffers_; }
  [[nodiscard]] const StageOptions& options() const { return options_; }

  /// Runs the callable, with `whereabouts` set.
  Value forward(const StageCall& call) const;
  [[nodiscard]] std::function<void()> enter_evaluation() const {
    return enter_evaluation_ ? enter_evaluation_() : [] {};
  }

 private:
  StageId index_;
  Forward forward_;
  NamedTensors parameters_;
  NamedTensors buffers_;
  EnterEvaluation enter_evaluation_;
  StageOptions options_;
};

}  // namespace stagecraft

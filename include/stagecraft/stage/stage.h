#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/core/ids.h"
#include "stagecraft/stage/recompute.h"
#include "stagecraft/stage/tensor_spec.h"
#include "stagecraft/stage/value.h"

/// A stage: a piece of a model, which one rank computes.
namespace stagecraft {

/// One forward of a stage.
struct StageCall {
  StageId stage;
  MicrobatchId microbatch;
  /// Positional inputs: the user's on the first stage, elsewhere those of the edges.
  const ValueList& arguments;
  /// Keyword inputs of this step, cut to this microbatch.
  const ValueDict& keywords;
  /// Whether floating-point inputs may be of other types than the stage was made for (PipelineOptions::precision).
  bool any_float = false;

  /// Throws InvalidArgument when the argument is missing or is not a tensor.
  [[nodiscard]] const at::Tensor& tensor(std::size_t argument) const;
  /// Throws InvalidArgument when there are more arguments, which a module would silently ignore.
  void require_at_most(std::size_t count) const;
  /// The keyword's value; none when it was not given.
  [[nodiscard]] Value keyword(std::string_view name) const;
};

/// The stage and microbatch that this thread computes at the moment; -1 outside of a forward. For modules that need it,
/// such as a router that keeps statistics per microbatch.
struct Whereabouts {
  StageId stage{-1};
  MicrobatchId microbatch{-1};
};
Whereabouts whereabouts();

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
/// A hash of names, types, shapes and requires_grad, as text: "96 numbers, hash 1f2e".
std::string fingerprint_of(const NamedTensors& tensors);

/// Computes one microbatch.
using StageForward = std::function<Value(const StageCall&)>;

/// One of a chain of layers: the first takes what the stage takes, the others what the layer before returned (the items
/// of a list, or anything else as one argument) and no keywords.
struct StageLayer {
  std::string name;  ///< In the whole model.
  StageForward forward;
};

/// An OVERLAP_F_B: the forward of one microbatch, and the backward of another, which may be of another stage.
struct OverlapCall {
  const StageCall& forward;
  StageId backward_stage;
  MicrobatchId backward_microbatch;
  /// What came back for the tensors that the backward's stage returned, and for its losses, in this order; undefined
  /// where nothing came back.
  const std::vector<at::Tensor>& gradients;
  /// Runs the whole backward: on a device with streams beside what the call itself issues. Call it once, or compute the
  /// same gradients in your own way, added to the .grad of the inputs and parameters.
  const std::function<void()>& backward;
};
/// Returns the output of the forward. Both halves are done, or issued to the current stream, when it returns.
using StageOverlap = std::function<Value(const OverlapCall&)>;

/// How what a stage keeps has changed in some calls: see Remembered.
struct KeptSince {
  /// In the place of something that they have read is now something else: the next call goes on from that.
  bool carries = false;
  /// Puts there what those calls have put in the place of something else, or added. Empty: nothing.
  std::function<void()> put_again = {};
  /// Whether somebody has put something in the place of a tensor that those calls have read, since this was asked last.
  /// Empty: nobody can tell.
  std::function<bool()> has_replaced = {};
  /// After further calls, where something was replaced: whether these have made the same again, with the same values.
  /// Needed with `has_replaced`.
  std::function<bool()> has_made_again = {};
  /// Whether somebody has put tensors where there were none, since this was asked last: what the next call makes of
  /// those is open.
  std::function<bool()> has_added = {};
  /// Whether the next calls find tensors where those calls have found none: what they have made there themselves, and
  /// would go on from, or a tensor that they have read elsewhere. No eager step can tell.
  std::function<bool()> begins_otherwise = {};
};

/// Memory, by address, that calls of a stage have used.
struct UsedMemory {
  std::vector<const void*> read;  ///< It was there before.
  std::vector<const void*> made;
};

/// What a stage keeps for later calls: see StageOptions::remember.
struct Remembered {
  /// Gives it back to the stage, after further calls.
  std::function<void(const UsedMemory&)> put_back;
  std::vector<at::Tensor> tensors;  ///< All that `put_back` holds.
  /// Once, after further calls of the stage. Memory that they have read, and that nobody has afterwards, is then taken
  /// for that of compiled code, unless it carries something. Empty: a stage that replaces what it keeps is captured
  /// anew when somebody else has replaced it since.
  std::function<KeptSince(const UsedMemory&)> compare = {};
};

struct StageOptions {
  /// Run the whole backward in the input part; for stages whose graph must not be walked twice.
  bool full_backward = false;
  /// Give the stage private copies of its inputs, so that it may work on them in place.
  bool copy_inputs = false;
  /// Expected types and shapes of the tensors in the positional inputs and in the outputs, in order; checked for every
  /// microbatch. Empty: no check.
  std::vector<TensorSpec> inputs = {};
  std::vector<TensorSpec> outputs = {};
  /// A scalar computed from this stage's outputs and added to the loss, with the weight of the microbatch.
  std::function<at::Tensor(const Value& output)> auxiliary_loss = {};
  /// For layers that compute weight gradients themselves: called right after the autograd backward of a microbatch.
  /// Returns the work that the weight part runs later (a full backward runs it at once).
  std::function<std::function<void()>()> deferred_weights = {};
  /// Names of buffers that checkpoints leave out, such as tables that the stage computes.
  std::vector<std::string> not_saved = {};
  /// Further names of parameters, each with the name that the stage uses, for a model that uses one weight in two
  /// places. Checkpoints are saved with all names; one is enough to load.
  std::vector<std::pair<std::string, std::string>> other_names = {};
  /// For a Sequential, the position of its first layer in the whole model. Each layer then draws its own random
  /// numbers, the same however the model is cut (see RandomLayer). -1: layers draw those of the stage.
  std::int64_t first_layer = -1;
  /// What this stage recomputes, if it differs from PipelineOptions::recompute.
  std::optional<Recompute> recompute = {};
  /// Returns layers that compute together what the stage computes; for a recompute of some layers. Empty: there are
  /// none. Stages from a Sequential and from an exported program have them.
  std::function<std::vector<StageLayer>()> layers = {};
  /// Computes an OVERLAP_F_B whose forward is this stage's in one call, so that both halves can be interleaved layer by
  /// layer. Empty: the halves are issued one after the other, on a device with streams to two of them. Not for stages
  /// that are recomputed. Not called where only the input part of the backward overlaps, nor with handlers for F or B.
  StageOverlap overlapped = {};
  /// Why a backward of this stage must not draw random numbers; one that does throws InvalidArgument with this text.
  /// For functions that compute a part of the forward again and cannot know which numbers it drew. Empty: it may draw.
  std::string no_random_in_backward = {};
  /// A number that changes when the stage begins to compute something else, such as when a submodule changes between
  /// training and evaluation: a step that was captured as a graph is then captured anew. Stages from modules have it.
  std::function<std::uint64_t()> mode = {};
  /// Remembers which tensors the stage keeps for later calls: they may be replaced while a step is captured as a graph,
  /// and are given back if the graph is not used. Empty: such a stage must not use what it has kept meanwhile; a step
  /// that does throws. Stages of Python modules have it, with all that Remembered has.
  std::function<Remembered()> remember = {};
  /// A short text about the model and the cuts that the stage comes from; ranks compare it before the first step.
  /// Empty: unknown.
  std::string origin = {};
};

/// A callable with parameters. Copies share the tensors.
class Stage {
 public:
  using Forward = StageForward;

  /// Switches to evaluation, and returns a function that switches back.
  using EnterEvaluation = std::function<std::function<void()>()>;

  /// `enter_evaluation` may be empty: the stage then does not distinguish training from evaluation.
  Stage(int index, Forward forward, NamedTensors parameters, NamedTensors buffers = {},
        EnterEvaluation enter_evaluation = {}, StageOptions options = {});

  [[nodiscard]] StageId index() const { return index_; }
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  [[nodiscard]] const NamedTensors& buffers() const { return buffers_; }
  [[nodiscard]] const StageOptions& options() const { return options_; }

  /// Runs the callable, with `whereabouts` set.
  Value forward(const StageCall& call) const { return visit(forward_, call); }
  /// Runs a callable with `whereabouts` set.
  static Value visit(const Forward& forward, const StageCall& call);
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

#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "captured_step.h"
#include "graph_device.h"
#include "held_memory.h"
#include "loss_policy.h"
#include "parameter_store.h"
#include "stagecraft/runtime/graph.h"
#include "stagecraft/transport/message.h"
#include "step_signature.h"

namespace stagecraft {

class CaptureMemory;
struct Program;

/// The captured training steps of one rank, one list of graphs for each signature that steps have had: see
/// docs/design/graphs.md.
class StepGraphs {
 public:
  /// How the executor runs a step.
  struct Execution {
    const Program& program;
    const StepInputs& inputs;
    using CapturePiece = std::function<void(const std::function<void()>& work)>;
    /// Captures the pieces of the step, with these inputs. Nothing is exchanged.
    std::function<void(const StepInputs&, CapturedPieces&, const CapturePiece&)> capture;
    /// Drops what a capture has left, also after it threw.
    std::function<void()> clear;
    /// Replays them, and exchanges messages in between.
    std::function<void(CapturedPieces&)> replay;
    /// What the other ranks of the pipeline capture or replay in this step.
    std::uint64_t others = 0;
    /// The outputs of the step: what `capture` has left, and what the caller gets.
    std::vector<Value>& outputs;
  };

  /// Whether a step can be replayed.
  struct Outlook {
    enum class Kind {
      kReady,
      kNotNow,  ///< This rank runs it eagerly, which does not concern others.
      kFailed,  ///< The capture has failed: no rank may capture it.
    } kind = Kind::kReady;
    std::string why;  ///< It cannot.
  };

  /// All arguments must outlive it.
  StepGraphs(c10::Device device, const PipelineOptions& options, const std::vector<Stage>& stages,
             ParameterStore& parameters, LossPolicy& losses);

  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  /// Whether there is a device to capture on. If not, nothing else may be called.
  [[nodiscard]] bool can_capture() const { return graphs_ != nullptr; }
  /// Before every step. Where parameters and buffers are matters in training alone: an evaluation may have others.
  void begin_step(bool training);
  /// What this rank's part of a step depends on. Keep it until `replay`.
  [[nodiscard]] StepSignature signature_of(const Program& program, const StepInputs& inputs);
  /// Whether steps of this signature need no new capture, whatever others do.
  [[nodiscard]] bool is_settled(const StepSignature& signature);
  /// Captures the step, unless it is captured already, or is the first of its kind. Changes nothing else.
  Outlook prepare(StepSignature& signature, const Execution& execution);
  /// The messages of the step, if it is ready: see CapturedPieces.
  [[nodiscard]] std::string forms() const { return current_->captured->pieces.forms(); }
  /// After `prepare`, if all ranks are ready.
  void replay(const StepSignature& signature, const Execution& execution);
  /// The step runs eagerly; `why` is printed once.
  void refuse(const std::string& why);
  /// The step runs eagerly, for now.
  void put_off(const std::string& why);
  /// The capture has failed, here or on another rank; when it happens again, such steps stay eager.
  void give_up(const std::string& why);
  /// Later steps like this one run eagerly.
  void stay_eager(const std::string& why);
  /// The eager step has failed too: what came up during its capture was not about graphs.
  void forgive();
  /// The step has failed while it was replayed.
  void abandon();

  /// Memory that was made during a capture and never computed, because the step was not replayed; others have it.
  [[nodiscard]] const std::vector<WeakMemory>& uncomputed();

  /// The first step of its kind runs eagerly; a capture needs to know what messages look like.
  [[nodiscard]] bool is_learning() const { return is_learning_; }
  void learn(const Tag& tag, const Message& message);
  /// Before the actions of an eager step. Keep the result until `end_eager`, on this thread.
  [[nodiscard]] std::unique_ptr<CaptureMemory> watch_eager(const StepInputs& inputs);
  /// A step or an evaluation has run eagerly, and succeeded.
  void end_eager(CaptureMemory* watch);
  /// An eager step has received a message.
  void note_received(const Message& message);
  /// During a capture: a message with tensors that have a shape but no memory.
  [[nodiscard]] const CapturedMessage& learned(const Tag& tag) const;

  [[nodiscard]] CapturedSteps report() const;

  /// During a capture: streams for branches of the graph.
  [[nodiscard]] std::vector<c10::Stream> branches(std::size_t count) { return graphs_->branches(count); }
  /// During a capture: see GraphDevice.
  void record(const c10::Event& event) { graphs_->record(event); }
  /// Drops all graphs.
  void forget();
  /// Whether a gradient of a parameter is there at the moment.
  [[nodiscard]] bool is_gradient(const c10::StorageImpl* memory);

 private:
  /// Steps of one signature.
  struct Kind {
    std::vector<std::uint64_t> key;  // the last number is about other ranks
    bool is_learned = false;
    std::vector<CapturedMessage> arriving;  // as learned
    std::string obstacle;                   // in a message that was learned
    bool carries = false;                   // a module carries a tensor from step to step, and replaces it
    std::optional<CapturedStep> captured;
    int failures = 0;  // to capture it
    int retaken = 0;   // how often it was dropped to be captured anew
    int replayed = 0;
    std::string reason;       // why it stays eager; empty if it does not
    bool has_failed = false;  // the reason concerns all ranks
  };

  [[nodiscard]] Kind* find(const std::vector<std::uint64_t>& key);
  [[nodiscard]] int graphs() const;
  void drop_if_moved();
  void regain_gradients();
  void forget_oldest();
  void note_replaced(bool by_modules);
  void leave_uncomputed(std::vector<Remembered> before_capture, const UsedMemory& used,
                        const std::vector<WeakMemory>& made);
  void leave_uncomputed(CapturedStep& captured);
  void settle(CapturedStep& captured);
  [[nodiscard]] Memories kept_by_others(const CapturedStep& made);
  std::string share_memory(Kind& kind, CapturedStep& made, CaptureMemory& memory, const Memories& remembered,
                           bool keeps_inputs);
  [[nodiscard]] UsedMemory used_memory(const CapturedStep& captured) const;
  /// What a capture needs, before it begins.
  [[nodiscard]] CapturedStep with_memory(const StepSignature& signature);
  /// Returns why it cannot; empty if it can.
  std::string capture(Kind& kind, const StepSignature& signature, const Execution& execution);
  void bring_in(CapturedStep& captured, const StepSignature& signature);
  void bring_out(CapturedStep& captured, const Execution& execution);
  [[nodiscard]] at::Tensor& gradient_of(std::size_t parameter);
  [[nodiscard]] GradientPtr known(const at::Tensor& gradient) const;
  /// Whether a replay would write to a gradient that somebody has kept.
  [[nodiscard]] bool overwrites(const CapturedStep& captured);
  [[nodiscard]] bool overwrites_after_all(const CapturedStep& captured);
  void drop(Kind& kind);
  void retake(Kind& kind, const char* why);
  /// Before a capture: makes the tensors that the graph adds to the parameters' gradients. Returns those they had.
  std::vector<at::Tensor> put_in_gradients(const CapturedStep& made);
  /// After a capture: takes the gradients that the graph writes, and gives parameters back the `originals`. Returns why
  /// the step cannot be replayed; empty if it can.
  std::string take_gradients(CapturedStep& made, const std::vector<at::Tensor>& originals);
  /// Where gradients are that are other tensors than the ones that the graph changes; undefined for the others.
  std::vector<at::Tensor> bring_in_gradients(const CapturedStep& captured);
  void bring_out_gradients(const CapturedStep& captured, const std::vector<at::Tensor>& elsewhere);
  void say(const std::string& why);

  c10::Device device_;
  const PipelineOptions& options_;
  const std::vector<Stage>& stages_;
  ParameterStore& parameters_;
  LossPolicy& losses_;
  std::unique_ptr<GraphDevice> graphs_;
  std::vector<at::Tensor> trained_;     // the stages' parameters, each once
  std::vector<at::Tensor*> gradients_;  // where theirs are added up; found at the first step
  std::vector<std::uint64_t> places_;   // and shapes of parameters and buffers
  std::list<Kind> kinds_;               // at most kMostCaptured are captured
  /// Gradients of graphs that are gone, and of which capture.
  std::vector<std::pair<GradientPtr, std::uint64_t>> kept_;
  std::uint64_t captures_ = 0;
  std::vector<WeakMemory> uncomputed_;
  Kind* current_ = nullptr;    // that of this step
  bool is_learning_ = false;   // the current one
  bool is_checking_ = false;   // whether an eager step reads what the graph of its kind reads
  Memories known_;             // what that step was given
  bool has_given_up_ = false;  // on the current one, in this step, and may try again
  std::vector<std::string> said_;
  CapturedSteps report_;
  std::uint64_t moves_ = 0;  // how often parameters or buffers had another address
};

}  // namespace stagecraft

#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "device_times.h"
#include "graph_device.h"
#include "graph_random.h"
#include "loss_policy.h"
#include "parameter_store.h"
#include "stagecraft/runtime/graph.h"
#include "step_signature.h"

namespace stagecraft {

struct Program;

/// A message as a captured step knows it: views of memory that graphs read or write.
struct CapturedMessage {
  std::vector<at::Tensor> tensors;    ///< Undefined where the message holds nothing. They keep no memory alive.
  std::vector<bool> needs_gradients;  ///< By tensor.
  std::string header;
  std::shared_ptr<const std::string> form;
};

/// A step in pieces: the computations between two messages are one graph. Given to the executor, which goes through its
/// program in the same order in every step.
class StepPieces {
 public:
  virtual ~StepPieces() = default;
  /// Captures `work`, calls `fill`, which brings in what it reads, and replays it; or does not call `work`, if it was
  /// captured in an earlier step.
  virtual void run(const std::function<void()>& work, const std::function<void()>& fill) = 0;
  /// Whether this step is captured; otherwise it is replayed.
  [[nodiscard]] virtual bool is_capture() const = 0;
  /// The next message of the step: new while it is captured.
  virtual CapturedMessage& message() = 0;
  /// The times of the actions of the piece that was run last: of a new one while it is captured.
  virtual std::vector<DeviceTimes::Mark>& marks() = 0;
  /// Called before the first message is sent, posted or received: from then on the step cannot begin anew.
  virtual void exchange() = 0;
};

/// The captured training steps of one rank, one list of graphs for each signature that steps have had: see
/// docs/design/graphs.md.
class StepGraphs {
 public:
  /// How the executor runs a step.
  struct Execution {
    const Program& program;
    const StepInputs& inputs;
    /// Runs the step in pieces, with these inputs.
    std::function<void(const StepInputs&, StepPieces&)> run;
    /// Drops what a capture has left, also after it threw.
    std::function<void()> clear;
    /// What the other ranks of the pipeline capture or replay in this step.
    std::uint64_t others = 0;
    /// The outputs of the step: what `issue` has left, and what the caller gets.
    std::vector<Value>& outputs;
  };

  /// All arguments must outlive it.
  StepGraphs(c10::Device device, const PipelineOptions& options, const std::vector<Stage>& stages,
             ParameterStore& parameters, LossPolicy& losses);

  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  /// Whether there is a device to capture on. If not, nothing else may be called.
  [[nodiscard]] bool can_capture() const { return graphs_ != nullptr; }
  /// What this rank's part of a step depends on. Keep it until `run`.
  [[nodiscard]] StepSignature signature_of(const Program& program, const StepInputs& inputs);
  /// Replays the step, or captures it piece by piece while it runs. Returns false, having changed nothing, when the
  /// step has to run eagerly. Throws when that shows only after messages were exchanged: gradients are then as before.
  bool run(StepSignature signature, const Execution& execution);
  /// The step runs eagerly; `why` is printed once.
  void refuse(const std::string& why);
  /// The eager step has failed too: what came up during its capture was not about graphs.
  void forgive();
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
  /// A gradient that a graph writes. Graphs that continue each other's gradients share it.
  struct Gradient {
    at::Tensor tensor;
    std::size_t storage_uses = 0;  // how many tensors share its memory, as captured

    /// Whether only graphs have it.
    [[nodiscard]] bool is_ours() const;
  };
  using GradientPtr = std::shared_ptr<Gradient>;

  struct Captured {
    std::vector<std::uint64_t> key;
    int failures = 0;
    int retaken = 0;     // how often it was dropped because somebody kept a gradient
    std::string reason;  // why it stays eager; empty if it does not
    std::vector<std::unique_ptr<DeviceGraph>> graphs;
    std::vector<CapturedMessage> messages;
    std::vector<std::vector<DeviceTimes::Mark>> marks;  // by graph; without a recorded timeline they are empty
    std::vector<at::Tensor> inputs;
    at::Tensor seeds;
    std::unique_ptr<StreamSeeds> random;
    // By parameter; null where there is none.
    std::vector<GradientPtr> before;
    std::vector<GradientPtr> after;
    std::vector<at::Tensor> losses;
    std::vector<Value> outputs;
  };

  class Capture;
  class Replay;

  [[nodiscard]] Captured* find(const std::vector<std::uint64_t>& key);
  void drop_if_moved();
  bool capture(Captured& captured, const StepSignature& signature, const Execution& execution);
  void replay(Captured& captured, const StepSignature& signature, const Execution& execution);
  void bring_in(Captured& captured, const StepSignature& signature);
  void bring_out(Captured& captured, const Execution& execution);
  [[nodiscard]] at::Tensor& gradient_of(std::size_t parameter);
  [[nodiscard]] GradientPtr known(const at::Tensor& gradient) const;
  [[nodiscard]] bool is_held_elsewhere(const Captured& captured) const;
  /// Where gradients are that are other tensors than the ones that the graph changes; undefined for the others.
  std::vector<at::Tensor> bring_in_gradients(const Captured& captured);
  void bring_out_gradients(const Captured& captured, const std::vector<at::Tensor>& elsewhere);
  void say(const std::string& why);

  c10::Device device_;
  const PipelineOptions& options_;
  const std::vector<Stage>& stages_;
  ParameterStore& parameters_;
  LossPolicy& losses_;
  std::unique_ptr<GraphDevice> graphs_;
  std::vector<at::Tensor> trained_;     // the stages' parameters, each once
  std::vector<at::Tensor*> gradients_;  // where theirs are added up; found at the first step
  std::vector<const void*> addresses_;  // of parameters and buffers
  std::list<Captured> captured_;        // at most kMost with a graph
  Captured* failed_ = nullptr;          // the one whose capture has failed in this step
  std::vector<std::string> said_;
  CapturedSteps report_;
};

}  // namespace stagecraft

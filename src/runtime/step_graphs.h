#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "graph_device.h"
#include "graph_random.h"
#include "loss_policy.h"
#include "parameter_store.h"
#include "stagecraft/runtime/graph.h"
#include "step_form.h"

namespace stagecraft {

struct Program;

/// The captured training steps of one rank, one graph for each form that steps have had: see docs/design/graphs.md.
class StepGraphs {
 public:
  /// How the executor runs a step.
  struct Execution {
    const Program& program;
    const StepInputs& inputs;
    /// Issues all computations of the step, with these inputs. Called while they are captured.
    std::function<void(const StepInputs&)> issue;
    /// Drops what `issue` has left, also after it threw.
    std::function<void()> clear;
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
  /// Replays the step, or captures it and replays it then. Returns false, having changed nothing, when the step has to
  /// run eagerly.
  bool run(const Execution& execution);
  /// The step runs eagerly; `why` is printed once.
  void refuse(const std::string& why);
  /// The eager step has failed too: what came up during its capture was not about graphs.
  void forgive();
  [[nodiscard]] CapturedSteps report() const;

 private:
  /// A gradient that a graph writes. Graphs that continue each other's gradients share it.
  struct Gradient {
    at::Tensor tensor;
    std::size_t storage_uses = 0;  // how many tensors share its memory, as captured

    /// Whether only graphs have it.
    [[nodiscard]] bool is_ours() const {
      return tensor.use_count() == 1 && tensor.storage().use_count() == storage_uses;
    }
  };
  using GradientPtr = std::shared_ptr<Gradient>;

  struct Captured {
    std::vector<std::uint64_t> key;
    int failures = 0;
    int retaken = 0;     // how often it was dropped because somebody kept a gradient
    std::string reason;  // why it stays eager; empty if it does not
    std::unique_ptr<DeviceGraph> graph;
    std::vector<at::Tensor> inputs;
    at::Tensor seeds;
    std::unique_ptr<StreamSeeds> random;
    // By parameter; null where there is none.
    std::vector<GradientPtr> before;
    std::vector<GradientPtr> after;
    std::vector<at::Tensor> losses;
    std::vector<Value> outputs;
  };

  [[nodiscard]] StepForm form_of(const Execution& execution);
  [[nodiscard]] Captured* find(const std::vector<std::uint64_t>& key);
  void drop_if_moved();
  bool capture(Captured& captured, const StepForm& form, const Execution& execution);
  void replay(Captured& captured, const StepForm& form, const Execution& execution);
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

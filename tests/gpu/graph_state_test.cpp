// Steps as graphs, and what modules, losses and callers do to tensors behind the back of a replay: always the bits of
// the eager step. Needs a GPU: `make test-gpu`.

#include <map>
#include <mutex>

#include "training.h"

namespace stagecraft::equivalence {
namespace {

class GraphState : public OnGpu {};

at::Tensor mean_square(const Value& output, const Value& target) {
  return (output[0].tensor() - target.tensor()).pow(2).mean();
}

/// As pruning and old ways of clipping do: the tensor stays the same one, its memory does not.
TEST_F(GraphState, GradientsThatGetOtherData) {
  for (const bool sets_to_none : {true, false}) {
    SCOPED_TRACE(sets_to_none);
    Training run{.model = model("Dropout")};
    run.steps = 10;
    run.after = [](int step, Pipeline& pipeline, const auto&) {
      if (step % 3 == 0) return;
      for (const at::Tensor& parameter : pipeline.parameters()) {
        parameter.mutable_grad().set_data(parameter.grad() * 0.5);
      }
    };
    run.zero = [sets_to_none](int, torch::optim::Optimizer& optimizer) { optimizer.zero_grad(sets_to_none); };
    const CapturedSteps captured = compare(run);
    EXPECT_GE(captured.replayed, 8U) << captured.reason;
  }
}

/// Makes its state at the first call, and changes it in place from then on.
struct Averaging : detail::Linear {
  ValueList run(const ValueList& in) override {
    const at::Tensor x = in[0].tensor();
    const at::Tensor mean = x.detach().mean(0);
    if (!average.defined()) {
      average = mean.clone();
    } else {
      average.lerp_(mean, 0.1);
    }
    return detail::Linear::run({x - average.clone()});
  }
  at::Tensor average;
};

/// At the beginning of an epoch the caller takes the state away. The module makes it anew in one step, and no later
/// one.
TEST_F(GraphState, StateThatTheCallerTakesAway) {
  for (const auto& [ranks, schedule] : {std::pair(1, "LoopedBFS"), {2, "LoopedBFS"}, {1, "InterleavedZeroBubble"}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + schedule);
    Training run{.model = {.name = "Averaging", .make = [](int, int) { return std::make_shared<Averaging>(); }}};
    run.ranks = ranks;
    run.schedule = schedule;
    run.steps = 24;
    run.options = [](PipelineOptions& options) { options.lanes = 1; };
    run.before = [](int step, Pipeline& pipeline, const std::vector<PiecePtr>& pieces) {
      if (step == 0 || step % 8 != 0) return;
      for (const Stage& stage : pipeline.stages()) {
        std::dynamic_pointer_cast<Averaging>(pieces[stage.index().index()])->average.reset();
      }
    };
    const CapturedSteps captured = compare(run);
    EXPECT_GE(captured.replayed, 18U) << captured.reason;
  }
}

/// Has a state for one shape at a time.
struct ByShape : detail::Linear {
  ValueList run(const ValueList& in) override {
    const at::Tensor x = in[0].tensor();
    if (!state.defined() || state.size(0) != x.size(0)) state = at::zeros(x.sizes(), x.options().requires_grad(false));
    state.mul_(0.9).add_(x.detach());
    return detail::Linear::run({x - state.clone()});
  }
  at::Tensor state;
};

TEST_F(GraphState, StateThatEvaluationsAndOtherShapesReplace) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    Training run{.model = {.name = "ByShape", .make = [](int, int) { return std::make_shared<ByShape>(); }}};
    run.ranks = ranks;
    run.schedule = "LoopedBFS";
    run.steps = 24;
    run.rows = [](int step) { return step == 17 ? 20 : 24; };
    run.options = [](PipelineOptions& options) { options.lanes = 1; };
    run.before = [](int step, Pipeline& pipeline, const auto&) {
      if (step % 8 == 7) pipeline.eval({at::ones({20, kWidth}, at::TensorOptions(kGpu))});
    };
    const CapturedSteps captured = compare(run);
    EXPECT_GE(captured.replayed, 12U) << captured.reason;
  }
}

/// A scale in the loss is trained from the fifth step on.
TEST_F(GraphState, TensorsThatAreTrainedLater) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    Training run{.model = model("Dropout")};
    run.schedule = "Interleaved1F1B";
    run.ranks = ranks;
    run.steps = 8;
    std::vector<at::Tensor> gradients;  // by run
    const auto train_it = [&](bool graph) {
      const at::Tensor scale = at::ones({}, at::TensorOptions(kGpu));
      run.options = [scale](PipelineOptions& options) {
        options.loss = [scale](const Value& output, const Value& target, const ValueDict&) {
          return mean_square(ValueList{output[0].tensor() * scale}, target);
        };
      };
      run.before = [scale](int step, Pipeline& pipeline, const auto&) {
        if (step == 4 && pipeline.has_last_stage()) scale.set_requires_grad(true);
      };
      std::vector<Trace> traces = train(run, graph);
      gradients.push_back(scale.grad());
      return traces;
    };
    const std::vector<Trace> eager = train_it(false);
    const std::vector<Trace> graph = train_it(true);
    for (std::size_t rank = 0; rank < graph.size(); ++rank) expect_same_bits(graph[rank], eager[rank]);
    ASSERT_TRUE(gradients[0].defined() && gradients[1].defined());
    EXPECT_TRUE(are_same_bits(gradients[1], gradients[0]));
    EXPECT_EQ(graph.back().captured.replayed, 3U);
    EXPECT_THAT(graph.back().captured.reason, testing::HasSubstr("no parameter of a stage"));
  }
}

/// Works in a tensor that it makes as large as it needs.
struct Scratch : detail::Linear {
  ValueList run(const ValueList& in) override {
    const at::Tensor x = in[0].tensor();
    if (!work.defined()) work = at::empty({0}, x.options().requires_grad(false));
    if (work.numel() < x.numel()) work.resize_({x.numel()});
    const at::Tensor part = work.narrow(0, 0, x.numel()).view(x.sizes());
    part.copy_(x.detach());
    return detail::Linear::run({x + part.clone()});
  }
  at::Tensor work;
};

TEST_F(GraphState, TensorsThatGrow) {
  Training run{.model = {.name = "Scratch", .make = [](int, int) { return std::make_shared<Scratch>(); }}};
  run.steps = 14;
  run.rows = [](int step) { return step == 4 ? 48 : 24; };
  run.options = [](PipelineOptions& options) { options.lanes = 1; };
  run.before = [](int, Pipeline&, const auto&) {
    for (int i = 0; i < 50; ++i) at::full({6 * kWidth}, 1e6, at::TensorOptions(kGpu));  // takes memory that is free
  };
  const CapturedSteps captured = compare(run);
  EXPECT_GE(captured.replayed, 11U) << captured.reason;
}

/// Reads as many numbers of a table as it has. The caller makes it smaller, which leaves it where it is.
struct Table : detail::Linear {
  ValueList run(const ValueList& in) override {
    if (!table.defined()) table = at::arange(1, 9, at::TensorOptions(kGpu).dtype(at::kFloat));
    return detail::Linear::run({in[0].tensor() * table.mean()});
  }
  at::Tensor table;
};

TEST_F(GraphState, TensorsThatShrink) {
  Training run{.model = {.name = "Table", .make = [](int, int) { return std::make_shared<Table>(); }}};
  run.steps = 14;
  run.before = [](int step, Pipeline& pipeline, const std::vector<PiecePtr>& pieces) {
    for (const Stage& stage : pipeline.stages()) {
      if (step == 6) std::dynamic_pointer_cast<Table>(pieces[stage.index().index()])->table.resize_({4});
    }
  };
  const CapturedSteps captured = compare(run);
  EXPECT_GE(captured.replayed, 10U) << captured.reason;
}

/// The caller keeps several, and gives the module's tensor the memory of one of them, or of another part of one.
TEST_F(GraphState, TensorsThatGetOtherMemory) {
  for (const bool are_parts : {false, true}) {
    SCOPED_TRACE(are_parts);
    Training run{.model = {.name = "Table", .make = [](int, int) { return std::make_shared<Table>(); }}};
    run.steps = 20;
    const at::Tensor all = at::arange(1, 17, at::TensorOptions(kGpu).dtype(at::kFloat));
    synchronize();
    const std::vector<at::Tensor> tables = are_parts ? all.chunk(2) : at::stack(all.chunk(2)).unbind();
    run.before = [&](int step, Pipeline& pipeline, const std::vector<PiecePtr>& pieces) {
      for (const Stage& stage : pipeline.stages()) {
        at::Tensor& own = std::dynamic_pointer_cast<Table>(pieces[stage.index().index()])->table;
        if (step == 0) own = tables[0].detach();
        if (step % 7 == 6) own.set_data(tables[static_cast<std::size_t>(step / 7 + 1) % 2]);
      }
    };
    const CapturedSteps captured = compare(run);
    EXPECT_GE(captured.replayed, 14U) << captured.reason;
  }
}

/// A square weight that is turned lies where it was.
TEST_F(GraphState, ParametersThatAreTransposed) {
  Training run{.model = {.name = "Linear", .make = [](int, int) { return std::make_shared<detail::Linear>(); }}};
  run.steps = 14;
  run.before = [](int step, Pipeline& pipeline, const auto&) {
    for (at::Tensor parameter : pipeline.parameters()) {
      if (step == 6 && parameter.dim() == 2) parameter.set_data(parameter.detach().t());
    }
  };
  const CapturedSteps captured = compare(run);
  EXPECT_GE(captured.replayed, 10U) << captured.reason;
}

/// Computes in memory of its own, so that autograd knows that tensor from the step before.
struct Workbench : detail::Linear {
  ValueList run(const ValueList& in) override {
    const at::Tensor x = in[0].tensor();
    if (!work.defined()) work = at::empty_like(x).detach();
    work.detach_();
    work.copy_(x);
    return detail::Linear::run({work.clone()});
  }
  at::Tensor work;
};

TEST_F(GraphState, TensorsThatStepsComputeIn) {
  Training run{.model = {.name = "Workbench", .make = [](int, int) { return std::make_shared<Workbench>(); }}};
  run.steps = 10;
  run.options = [](PipelineOptions& options) { options.lanes = 1; };
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.replayed, 9U) << captured.reason;
}

/// Compares its input with that of the call before.
struct Differences : detail::Linear {
  ValueList run(const ValueList& in) override {
    const at::Tensor x = in[0].tensor();
    const at::Tensor before = previous.defined() ? previous : at::zeros_like(x);
    previous = x.detach();
    return detail::Linear::run({x - 0.5 * before.detach()});
  }
  at::Tensor previous;
};

TEST_F(GraphState, InputsThatAreKeptForTheNextStep) {
  Training run;
  run.model = {.name = "Differences", .make = [](int stage, int) -> PiecePtr {
                 if (stage == 0) return std::make_shared<Differences>();
                 return std::make_shared<detail::Linear>();
               }};
  run.stage_options = [](const PiecePtr& piece) {
    StageOptions options;
    if (const auto own = std::dynamic_pointer_cast<Differences>(piece)) {
      options.remember = [own] {
        return Remembered{.put_back = [own, kept = own->previous](const auto&) { own->previous = kept; },
                          .tensors = {own->previous}};
      };
    }
    return options;
  };
  run.schedule = "LoopedBFS";
  run.microbatches = 2;
  run.steps = 8;
  run.options = [](PipelineOptions& options) { options.lanes = 1; };
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.replayed, 0U);
  EXPECT_THAT(captured.reason, testing::HasSubstr("carries from step to step"));
}

/// From the fifth step to the eighth.
TEST_F(GraphState, HooksThatComeAndGo) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    Training run{.model = {.name = "Linear", .make = [](int, int) { return std::make_shared<detail::Linear>(); }}};
    run.ranks = ranks;
    run.steps = 14;
    std::map<const Pipeline*, std::vector<std::pair<at::Tensor, unsigned>>> hooks;
    std::mutex mutex;
    run.before = [&](int step, Pipeline& pipeline, const auto&) {
      const std::lock_guard lock(mutex);
      for (const at::Tensor& parameter : pipeline.parameters()) {
        if (step != 4) continue;
        hooks[&pipeline].emplace_back(
            parameter, parameter.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; }));
      }
      if (step != 8) return;
      for (const auto& [parameter, number] : hooks[&pipeline]) parameter.remove_hook(number);
      hooks.erase(&pipeline);
    };
    const CapturedSteps captured = compare(run);
    EXPECT_GE(captured.replayed, 10U) << captured.reason;
  }
}

/// An evaluation with averages in the place of the parameters moves nothing that graphs read.
TEST_F(GraphState, EvaluationsWithOtherParameters) {
  Training run{.model = model("Dropout")};
  run.steps = 20;
  run.after = [](int step, Pipeline& pipeline, const auto&) {
    if (step % 3 != 1) return;
    std::vector<at::Tensor> own;
    for (at::Tensor parameter : pipeline.parameters()) {
      own.push_back(parameter.detach());
      parameter.set_data(parameter.detach() * 0.5);
    }
    pipeline.eval({at::ones({20, kWidth}, at::TensorOptions(kGpu))});
    for (std::size_t i = 0; i < own.size(); ++i) at::Tensor(pipeline.parameters()[i]).set_data(own[i]);
  };
  EXPECT_EQ(compare(run).replayed, 19U);
}

/// Hand-written updates that give parameters new memory: graphs would have to be captured anew in every step.
TEST_F(GraphState, ParametersThatMove) {
  for (const int every : {1, 2, 7}) {
    SCOPED_TRACE(every);
    Training run{.model = model("Dropout")};
    run.steps = 40;
    run.before = [every](int step, Pipeline& pipeline, const auto&) {
      if (step % every != 0) return;
      const at::NoGradGuard no_graph;
      for (at::Tensor parameter : pipeline.parameters()) parameter.set_data(parameter.clone());
    };
    const CapturedSteps captured = compare(run);
    if (every == 7) {
      EXPECT_GE(captured.replayed, 25U) << captured.reason;
    } else {
      EXPECT_LE(captured.replayed, 8U);
      EXPECT_THAT(captured.reason, testing::HasSubstr("another address"));
    }
  }
}

/// A penalty on all parameters: stages add to a gradient at the same time as the last one.
TEST_F(GraphState, LossesOfParametersOfOtherStages) {
  for (const char* schedule : {"Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"}) {
    SCOPED_TRACE(schedule);
    std::vector<PiecePtr> pieces;
    Training run{.model = {.name = "Linear", .make = [&](int stage, int) {
                             if (stage == 0) pieces.clear();
                             return pieces.emplace_back(std::make_shared<detail::Linear>());
                           }}};
    run.schedule = schedule;
    run.microbatches = 6;
    run.options = [&](PipelineOptions& options) {
      options.loss = [&](const Value& output, const Value& target, const ValueDict&) {
        at::Tensor loss = mean_square(output, target);
        for (const PiecePtr& piece : pieces) {
          for (const at::Tensor& parameter : piece->parameters()) loss = loss + 0.01 * parameter.square().sum();
        }
        return loss;
      };
    };
    const CapturedSteps captured = compare(run);
    EXPECT_GE(captured.replayed, 4U) << captured.reason;
    EXPECT_EQ(captured.lanes, 1);
  }
}

}  // namespace
}  // namespace stagecraft::equivalence

// Timelines of steps that are replayed as graphs: events in the graphs. Needs a GPU: `make test-gpu`.

#include <map>
#include <mutex>

#include "training.h"

namespace stagecraft::equivalence {
namespace {

class RecordedGraphs : public OnGpu {};

bool is_about_parameters(ActionKind kind) {
  return kind == ActionKind::kUnshard || kind == ActionKind::kReshard || kind == ActionKind::kReduceGrad;
}

/// Every step is recorded: the first is eager, the others replays.
void expect_the_timelines_of_eager_steps(Training run) {
  SCOPED_TRACE(run.schedule + ", " + std::to_string(run.ranks) + " ranks");
  std::mutex mutex;
  std::map<std::pair<const Pipeline*, int>, Timeline> all;
  run.before = [](int, Pipeline& pipeline, const auto&) { pipeline.record_timeline(true); };
  run.after = [&](int step, Pipeline& pipeline, const auto&) {
    const std::lock_guard lock(mutex);
    all[{&pipeline, step}] = pipeline.timeline();
  };
  const std::vector<Trace> eager = train(run, false);
  all.clear();
  const std::vector<Trace> graph = train(run, true);
  for (std::size_t rank = 0; rank < eager.size(); ++rank) {
    expect_same_bits(graph[rank], eager[rank]);
    if (graph[rank].names.empty()) continue;
    EXPECT_EQ(graph[rank].captured.replayed, 5U) << graph[rank].captured.reason;
  }
  const auto actions = [](const Timeline& timeline) {
    std::vector<std::string> texts;
    for (const Span& span : timeline) {
      if (!is_about_parameters(span.action.kind())) texts.push_back(to_text(span.action));
    }
    return texts;
  };
  for (const auto& [key, timeline] : all) {
    const auto& [pipeline, step] = key;
    SCOPED_TRACE("step " + std::to_string(step));
    EXPECT_EQ(actions(timeline), actions(all.at({pipeline, 0})));
    double compute = 0;
    for (const Span& span : timeline) {
      SCOPED_TRACE(to_text(span.action));
      EXPECT_GE(span.waited, 0);
      EXPECT_GE(span.end, span.start + span.waited);
      EXPECT_LT(span.end - timeline.front().start, 10) << "a time of another step";
      if (!is_compute(span.action.kind())) continue;
      EXPECT_EQ(span.replayed, step > 0);
      compute += span.end - span.start - span.waited;
    }
    EXPECT_GT(compute, 0);
  }
}

TEST_F(RecordedGraphs, HaveTheActionsOfEagerSteps) {
  expect_the_timelines_of_eager_steps({.model = model("Dropout"), .schedule = "InterleavedZeroBubble"});
  expect_the_timelines_of_eager_steps({.model = model("Dropout"), .schedule = "1F1B", .stages = 2, .ranks = 2});
  expect_the_timelines_of_eager_steps({.model = model("Skip"), .schedule = "ZBVZeroBubble", .ranks = 2});
  expect_the_timelines_of_eager_steps({.model = model("Dropout"), .schedule = "DualPipeV", .ranks = 2});
  Training run{.model = model("Dropout"), .schedule = "Interleaved1F1B", .stages = 4, .ranks = 2, .replicas = 2};
  expect_the_timelines_of_eager_steps(run);
  run.options = [](PipelineOptions& options) { options.recompute = Recompute::stage(); };
  expect_the_timelines_of_eager_steps(run);
}

TEST_F(GraphsOfProcesses, AreRecorded) {
  Training run{.model = model("Dropout"), .schedule = "InterleavedZeroBubble"};
  run.ranks = processes();
  run.stages = 2 * run.ranks;
  expect_the_timelines_of_eager_steps(run);
}

/// A kernel of known length: its square is as long as many small ones.
struct Long : Piece {
  explicit Long(int times) : weight(register_parameter("weight", at::ones({kWidth}))), repeats(times) {}
  ValueList run(const ValueList& in) override {
    at::Tensor x = in[0].tensor() * weight;
    const at::Tensor ballast = at::ones({2048, 2048}, x.options());
    for (int i = 0; i < repeats; ++i) at::mm(ballast, ballast);
    return {x};
  }
  at::Tensor weight;
  int repeats;
};

/// Stage 1 computes four times as long as stage 0; the device tells, though the host issues one call for all of it.
TEST_F(RecordedGraphs, SayHowLongEachActionTook) {
  Training run{
      .model = {.name = "Long", .make = [](int stage, int) { return std::make_shared<Long>(stage == 1 ? 32 : 8); }}};
  run.schedule = "Interleaved1F1B";
  run.stages = 2;
  std::map<int, double> seconds;
  run.before = [](int, Pipeline& pipeline, const auto&) { pipeline.record_timeline(true); };
  run.after = [&](int step, Pipeline& pipeline, const auto&) {
    if (step < 5) return;
    for (const Span& span : pipeline.timeline()) {
      EXPECT_TRUE(span.replayed || is_about_parameters(span.action.kind()));
      if (span.action.kind() == ActionKind::kForward) seconds[span.action.stage().value] += span.end - span.start;
    }
  };
  train(run, true);
  EXPECT_GT(seconds[1], 2.5 * seconds[0]);
  EXPECT_LT(seconds[1], 6 * seconds[0]);
}

/// The events of a capture that fails are in the graph that it leaves.
TEST_F(RecordedGraphs, WhoseCaptureFailsAreCapturedLater) {
  struct FailsOnce : detail::Dropout {
    ValueList run(const ValueList& in) override {
      if (*fails) throw std::runtime_error("on purpose");
      return Dropout::run(in);
    }
    std::shared_ptr<bool> fails;
  };
  const auto fails = std::make_shared<bool>(false);
  Training run{.model = {.name = "FailsOnce",
                         .make =
                             [&](int, int) {
                               auto piece = std::make_shared<FailsOnce>();
                               piece->fails = fails;
                               return piece;
                             }},
               .steps = 8};
  run.before = [&](int step, Pipeline& pipeline, const auto&) {
    pipeline.record_timeline(true);
    *fails = step == 1;
  };
  EXPECT_EQ(compare(run).replayed, 6U);
}

TEST_F(RecordedGraphs, TakeTurnsWithOthers) {
  Training run{.model = model("Dropout"), .schedule = "1F1B", .stages = 2, .ranks = 2, .steps = 12};
  run.before = [](int step, Pipeline& pipeline, const auto&) { pipeline.record_timeline(step % 3 == 2); };
  run.after = [](int step, Pipeline& pipeline, const auto&) { EXPECT_EQ(pipeline.timeline().empty(), step % 3 != 2); };
  EXPECT_EQ(compare(run).replayed, 10U);
}

}  // namespace
}  // namespace stagecraft::equivalence

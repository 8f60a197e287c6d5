#include "stagecraft/sim/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "link_profile.h"
#include "recorded_step.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/median.h"
#include "stagecraft/schedule/action_text.h"
#include "stagecraft/sim/simulator.h"
#include "stagecraft/sim/what_if.h"

namespace stagecraft {
namespace {

using detail::RecordedMessage;
using detail::RecordedStep;

constexpr double kMostOfBackward = 0.75;  // of a B, for an I that was never seen

class Profiler {
 public:
  explicit Profiler(Profile& profile)
      : profile_(profile),
        placement_(profile.placement),
        samples_(static_cast<std::size_t>(placement_.stages())),
        between_(static_cast<std::size_t>(placement_.ranks())) {}

  /// Of all steps, before any actions: they say which part of a wait is a cost.
  void add_messages(const RecordedStep& step) {
    for_each_message(step, [&](const Span&, const RecordedMessage& message) { links_.add(message); });
    for (const Timeline& timeline : step.ranks()) {
      for (const Span& span : timeline) {
        if (span.action.kind() == ActionKind::kSendForward) bytes(span.action).forward.push_back(as_double(span.bytes));
        if (span.action.kind() == ActionKind::kSendBackward)
          bytes(span.action).backward.push_back(as_double(span.bytes));
      }
    }
  }

  /// Behind all messages.
  void add_actions(const RecordedStep& step) {
    std::vector<StepSums> sums(samples_.size());
    for (std::size_t r = 0; r < step.ranks().size(); ++r) add_rank(step, RankId(r), sums);
    add_jitter(sums);
    for (std::size_t s = 0; s < sums.size(); ++s) {
      for (std::size_t kind = 0; kind < kActionKinds; ++kind) {
        if (sums[s].count[kind] > 0) samples_[s].means[kind].push_back(sums[s].seconds[kind] / sums[s].count[kind]);
      }
    }
  }

  /// A rank's next step begins some time after all ranks have ended the one before.
  void add_pause(const RecordedStep& before, const RecordedStep& after) {
    for (std::size_t r = 0; r < between_.size(); ++r) {
      between_[r].push_back(std::max(0.0, after.begin_of(RankId(r)) - before.end()));
    }
  }

  void close_messages() { links_.close(); }

  void finish() {
    profile_.jitter = std::min(1.0, median(jitters_));
    Costs& costs = profile_.costs;
    costs.stages.assign(samples_.size(), StageCosts());
    for (std::size_t s = 0; s < samples_.size(); ++s) finish_stage(StageId(s), costs.stages[s]);
    links_.write(costs);
  }

 private:
  struct StepSums {
    std::array<double, kActionKinds> seconds{};
    std::array<double, kActionKinds> squares{};  // of single actions, messages left out
    std::array<double, kActionKinds> own{};      // seconds, likewise
    std::array<double, kActionKinds> count{};
  };
  struct Samples {
    std::array<std::vector<double>, kActionKinds> means;  // by kind, one per step
    std::vector<double> forward;                          // bytes
    std::vector<double> backward;
  };

  static double as_double(std::int64_t value) { return static_cast<double>(value); }

  Samples& bytes(const Action& action) { return samples_[action.stage().index()]; }

  template <typename Visit>
  static void for_each_message(const RecordedStep& step, Visit&& visit) {
    for (std::size_t r = 0; r < step.ranks().size(); ++r) {
      for (const Span& span : step.ranks()[r]) {
        if (const auto message = step.message_for(span, RankId(r))) visit(span, *message);
      }
    }
  }

  void add_rank(const RecordedStep& step, RankId rank, std::vector<StepSums>& sums) const {
    const Timeline& timeline = step.ranks()[rank.index()];
    double end = timeline.front().start;
    for (const Span& span : timeline) {
      const ActionKind kind = charged_kind(step, span.action);
      StepSums& stage = sums[span.action.stage().index()];
      double& seconds = stage.seconds[static_cast<std::size_t>(kind)];
      if (span.beside) {
        seconds += span.waited;
        continue;
      }
      double busy = span.end - end - span.waited;
      if (const auto message = step.message_for(span, rank)) busy += links_.handling(*message);
      seconds += std::max(0.0, busy);
      end = span.end;
      if (kind != span.action.kind()) continue;
      stage.count[static_cast<std::size_t>(kind)] += 1;
      stage.own[static_cast<std::size_t>(kind)] += busy;
      stage.squares[static_cast<std::size_t>(kind)] += busy * busy;
    }
  }

  /// Long actions count more: they are what others wait for.
  void add_jitter(const std::vector<StepSums>& sums) {
    double variance = 0;
    double squares = 0;
    for (const StepSums& stage : sums) {
      for (std::size_t kind = 0; kind < kActionKinds; ++kind) {
        if (!is_compute(static_cast<ActionKind>(kind)) || stage.count[kind] < 2) continue;
        const double mean = stage.own[kind] / stage.count[kind];
        const double freedom = stage.count[kind] / (stage.count[kind] - 1);
        variance += freedom * std::max(0.0, stage.squares[kind] - mean * stage.own[kind]);
        squares += mean * stage.own[kind];
      }
    }
    if (squares > 0) jitters_.push_back(std::sqrt(variance / squares));
  }

  /// The kind of action whose cost an action is part of.
  static ActionKind charged_kind(const RecordedStep& step, const Action& action) {
    switch (action.kind()) {
      case ActionKind::kSendForward:
      case ActionKind::kRecvForward:
        return ActionKind::kForward;
      case ActionKind::kSendBackward:
      case ActionKind::kRecvBackward:
        return step.backward_of(action.stage(), action.microbatch());
      case ActionKind::kReshard:
        return ActionKind::kUnshard;
      default:
        return action.kind();
    }
  }

  void finish_stage(StageId stage, StageCosts& costs) {
    const Samples& samples = samples_[stage.index()];
    const auto of = [&](ActionKind kind) { return median(samples.means[static_cast<std::size_t>(kind)]); };
    const auto seen = [&](ActionKind kind) { return !samples.means[static_cast<std::size_t>(kind)].empty(); };
    costs.forward = of(ActionKind::kForward);
    costs.backward_input = of(ActionKind::kBackwardInput);
    costs.backward_weight = of(ActionKind::kBackwardWeight);
    const bool in_parts = seen(ActionKind::kBackwardInput) && seen(ActionKind::kBackwardWeight);
    costs.backward =
        seen(ActionKind::kBackward) ? of(ActionKind::kBackward) : costs.backward_input + costs.backward_weight;
    if (!in_parts && seen(ActionKind::kBackward)) {
      costs.backward_input = std::min(costs.forward, kMostOfBackward * costs.backward);
      costs.backward_weight = costs.backward - costs.backward_input;
      profile_.assumed_splits.push_back(stage);
    }
    costs.unshard = of(ActionKind::kUnshard);
    costs.reduce_grad = of(ActionKind::kReduceGrad);
    const RankId rank = placement_.rank_of(stage);
    costs.optimizer = median(between_[rank.index()]) / static_cast<double>(placement_.stages_of(rank).size());
    costs.forward_bytes = median(samples.forward);
    costs.backward_bytes = median(samples.backward);
  }

  Profile& profile_;
  const Placement& placement_;
  std::vector<Samples> samples_;              // by stage
  std::vector<std::vector<double>> between_;  // by rank: seconds from the end of a step on all ranks to its next
  std::vector<double> jitters_;               // by step
  detail::LinkProfile links_;
};

/// Steps of one recording that count, and the one before them.
struct Run {
  std::vector<RecordedStep> steps;
  bool has_before = false;  // the first one is only what came before
};

Run run_of(const Recording& recording, const Placement& placement, int skip) {
  const auto count = static_cast<int>(recording.steps.size());
  if (skip < 0) skip = count > 1 ? 1 : 0;
  if (skip >= count) {
    throw InvalidArgument(
        fmt::format("{} steps are recorded and the first {} are to be left out: record more steps, "
                    "or leave out fewer",
                    count, skip));
  }
  const std::vector<double> ahead = detail::clocks_ahead(recording, placement);
  Run run;
  run.has_before = skip > 0;
  for (int s = run.has_before ? skip - 1 : 0; s < count; ++s) {
    run.steps.emplace_back(recording.steps[static_cast<std::size_t>(s)], placement, ahead);
  }
  return run;
}

void check_ranks(const StepTimelines& step) {
  for (std::size_t r = 0; r < step.size(); ++r) {
    if (!step[r].empty()) continue;
    throw InvalidArgument(
        fmt::format("rank {} has an empty timeline: record every step on every rank, with record_timeline(true)", r));
  }
}

/// Whatever a rank has recorded is of stages that it computes.
void check_stages(const StepTimelines& step, const Placement& placement) {
  for (std::size_t r = 0; r < step.size(); ++r) {
    for (const Span& span : step[r]) {
      if (span.action.is_overlap()) {
        throw InvalidArgument(fmt::format(
            "rank {} has {}: an overlap is recorded as its two halves, one after the other", r, to_text(span.action)));
      }
      const StageId stage = span.action.stage();
      if (placement.contains(stage) && placement.rank_of(stage) == RankId(r)) continue;
      throw InvalidArgument(
          fmt::format("rank {} has {}, but does not compute stage {}: the timeline does not belong to a run", r,
                      to_text(span.action), stage.value));
    }
  }
}

/// Where stages were, in all steps of all recordings alike.
Placement common_placement(std::span<const Recording> recordings) {
  std::optional<Placement> placement;
  for (const Recording& recording : recordings) {
    for (const StepTimelines& step : recording.steps) {
      check_ranks(step);
      const Placement own = detail::computed_schedule(step, recording.name).placement;
      check_stages(step, own);
      if (!placement) placement = own;
      if (*placement == own) continue;
      throw InvalidArgument(fmt::format(
          "the timelines do not have the same stages on the same ranks ({} stages on {} ranks, then {} on {}): a "
          "profile is of one placement",
          placement->stages(), placement->ranks(), own.stages(), own.ranks()));
    }
  }
  if (!placement) throw InvalidArgument("there is no step to profile: record at least one");
  return *placement;
}

ProfiledRun outcome_of(const Recording& recording, const Run& run, const Profile& profile) {
  ProfiledRun outcome;
  outcome.name = recording.name;
  outcome.schedule = detail::computed_schedule(recording.steps.back(), recording.name);
  std::vector<double> periods;
  std::vector<double> makespans;
  for (std::size_t s = run.has_before ? 1 : 0; s < run.steps.size(); ++s) {
    makespans.push_back(run.steps[s].end() - run.steps[s].begin());
    if (s > 0) periods.push_back(run.steps[s].end() - run.steps[s - 1].end());
  }
  outcome.steps = static_cast<int>(makespans.size());
  outcome.measured_makespan = median(makespans);
  outcome.measured_period = periods.empty() ? outcome.measured_makespan : median(periods);
  outcome.simulated_period = predicted_period(profile, outcome.schedule);
  Profile without_pause = profile;
  for (StageCosts& stage : without_pause.costs.stages) stage.optimizer = 0;
  outcome.simulated_makespan = predicted_period(without_pause, outcome.schedule);
  return outcome;
}

}  // namespace

Profile profile(std::span<const Recording> recordings, const ProfileOptions& options) {
  Profile result;
  result.placement = common_placement(recordings);
  std::vector<Run> runs;
  for (const Recording& recording : recordings) runs.push_back(run_of(recording, result.placement, options.skip));
  Profiler profiler(result);
  const auto for_each_step = [&](auto&& visit) {
    for (const Run& run : runs) {
      for (std::size_t s = run.has_before ? 1 : 0; s < run.steps.size(); ++s) visit(run, s);
    }
  };
  for_each_step([&](const Run& run, std::size_t s) { profiler.add_messages(run.steps[s]); });
  profiler.close_messages();
  for_each_step([&](const Run& run, std::size_t s) {
    profiler.add_actions(run.steps[s]);
    if (s > 0) profiler.add_pause(run.steps[s - 1], run.steps[s]);
  });
  profiler.finish();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    result.runs.push_back(outcome_of(recordings[i], runs[i], result));
  }
  return result;
}

double predicted_period(const Profile& profile, const Schedule& schedule) {
  constexpr int kRuns = 51;
  if (profile.jitter < 1e-6) return simulate(schedule, profile.costs).makespan;
  return simulate_jitter(schedule, profile.costs, profile.jitter, kRuns, /*seed=*/1).median_makespan;
}

}  // namespace stagecraft

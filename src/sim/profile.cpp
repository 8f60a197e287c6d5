#include "stagecraft/sim/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "measured_costs.h"
#include "recorded_step.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/sim/simulator.h"

namespace stagecraft {
namespace {

using detail::RecordedStep;

constexpr double kMostOfBackward = 0.75;  // largest share of a B for an I that was not recorded
constexpr double kNoJitter = 1e-6;
constexpr std::size_t kLeastRuns = 51;  // simulations per prediction
constexpr std::size_t kMostRuns = 500;

class Profiler {
 public:
  explicit Profiler(Profile& profile)
      : profile_(profile),
        placement_(profile.placement),
        bytes_(static_cast<std::size_t>(placement_.stages())),
        between_(static_cast<std::size_t>(placement_.ranks())),
        work_(placement_) {}

  /// Call for all steps before `add_actions`: message times tell which part of a wait is a cost.
  void add_messages(const RecordedStep& step) {
    for (std::size_t r = 0; r < step.ranks().size(); ++r) {
      for (const Span& span : step.ranks()[r]) {
        if (const auto message = step.message_for(span, RankId(r))) links_.add(*message);
        if (!is_send(span.action.kind())) continue;
        Bytes& bytes = bytes_[span.action.stage().index()];
        const bool forward = span.action.kind() == ActionKind::kSendForward;
        (forward ? bytes.forward : bytes.backward).push_back(static_cast<double>(span.bytes));
      }
    }
  }
  void close_messages() { links_.close(); }

  /// Call after `close_messages`.
  void add_actions(const RecordedStep& step) { work_.add(step, links_); }

  /// Records each rank's time from the end of a step on all ranks to the start of its next step.
  void add_pause(const RecordedStep& before, const RecordedStep& after) {
    for (std::size_t r = 0; r < between_.size(); ++r) {
      between_[r].push_back(std::max(0.0, after.begin_of(RankId(r)) - before.end()));
    }
  }

  void finish() {
    work_.close();
    profile_.jitter = work_.jitter();
    profile_.paces = work_.paces();
    profile_.costs.stages.clear();
    for (int s = 0; s < placement_.stages(); ++s) profile_.costs.stages.push_back(costs_of(StageId(s)));
    links_.write(profile_.costs);
  }

 private:
  struct Bytes {
    std::vector<double> forward;
    std::vector<double> backward;
  };

  StageCosts costs_of(StageId stage) {
    const auto of = [&](ActionKind kind) { return work_.cost(stage, kind); };
    const auto seen = [&](ActionKind kind) { return work_.has(stage, kind); };
    StageCosts costs;
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
    costs.forward_bytes = median(bytes_[stage.index()].forward);
    costs.backward_bytes = median(bytes_[stage.index()].backward);
    return costs;
  }

  Profile& profile_;
  const Placement& placement_;
  std::vector<Bytes> bytes_;                  // by stage
  std::vector<std::vector<double>> between_;  // by rank: seconds from the end of a step on all ranks to its next step
  detail::LinkProfile links_;
  detail::WorkProfile work_;
};

/// The counted steps of one recording, preceded by the last skipped step if there is one.
struct Run {
  std::vector<RecordedStep> steps;
  bool has_before = false;  // the first step is the skipped one
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

/// Throws InvalidArgument for an action of a stage that its rank does not compute.
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

/// The placement of all steps of all recordings. Throws InvalidArgument when they differ.
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

ProfiledRun outcome_of(const Recording& recording, const Run& run) {
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
  return outcome;
}

Costs at_paces(const Costs& costs, const std::vector<double>& paces) {
  Costs changed = costs;
  changed.rank_slowdown = paces;
  for (std::size_t r = 0; r < paces.size(); ++r) changed.rank_slowdown[r] *= costs.slowdown(RankId(r));
  return changed;
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
    result.runs.push_back(outcome_of(recordings[i], runs[i]));
  }
  return result;
}

double predicted_period(const Profile& profile, const Schedule& schedule) {
  const std::size_t steps = profile.paces.size();
  if (steps <= 1 && profile.jitter < kNoJitter) return simulate(schedule, profile.costs).makespan;
  // Each recorded step gets the same number of runs. Ranks use consecutive seeds, so seeds of runs are kMaxRanks apart.
  const std::size_t shares = std::max<std::size_t>(1, std::min(steps, kMostRuns));
  const std::size_t runs = shares * ((kLeastRuns + shares - 1) / shares);
  std::vector<double> periods;
  for (std::size_t run = 0; run < runs; ++run) {
    const Costs costs = steps > 0 ? at_paces(profile.costs, profile.paces[run * steps / runs]) : profile.costs;
    periods.push_back(
        simulate(schedule, costs, {.jitter = profile.jitter, .seed = static_cast<std::uint64_t>(run * kMaxRanks)})
            .makespan);
  }
  return median(periods);
}

}  // namespace stagecraft

#pragma once

#include <span>
#include <string>
#include <vector>

#include "stagecraft/schedule/timeline.h"
#include "stagecraft/sim/costs.h"

/// Costs of real runs, from what they recorded.
namespace stagecraft {

struct ProfileOptions {
  /// Steps at the beginning of each recording that do not count; -1: the first one, where there are several. It
  /// allocates what later ones find.
  int skip = -1;
};

/// One recording, to be compared with what `predicted_period` says of its schedule.
struct ProfiledRun {
  std::string name;
  Schedule schedule;  ///< What was computed, in that order, and REDUCE_GRAD.
  int steps = 0;      ///< Counted steps.
  /// Medians over those steps: from the end of the step before to the end of the step, and from its own first action.
  /// With a single step, both are its makespan.
  double measured_period = 0;
  double measured_makespan = 0;
};

struct Profile {
  /// In seconds, one entry per stage. Memory is left at one unit per activation: it is not recorded.
  Costs costs;
  Placement placement;
  /// Relative standard deviation of actions of one stage and kind within a step. Ranks wait for each other's slow
  /// actions and gain nothing from fast ones, so a step takes longer than its mean actions would; see
  /// `predicted_period`.
  double jitter = 0;
  /// Slowdown of each rank in each counted step, relative to the rank's median. A step waits for the rank that is slow
  /// in it, so it takes longer than a step in which all ranks are at their median.
  std::vector<std::vector<double>> paces;
  /// Stages without recorded I and W; their costs are derived from B, see `profile`.
  std::vector<StageId> assumed_splits;
  std::vector<ProfiledRun> runs;
};

/// What actions and messages cost on average in a typical step: the median over steps of the mean within each, for the
/// time of a step adds up means, not medians; the rank's pace in each step is taken out.
///
/// An action's cost is the time from the end of the one before it, without its wait, and that of its own messages:
/// posting a RECV or a SEND takes time of the rank. A message's latency is the time from the end of its SEND to the
/// beginning of its consumer, where that one waited for it; messages of very different sizes on one link give it a
/// bandwidth too. What lies between the end of a step on all ranks and a rank's next one counts as `optimizer`,
/// divided among its stages. What REDUCE_GRAD made a rank wait for in the end counts as `reduce_grad`.
///
/// A stage whose backward was only seen whole is split so: the I takes as long as the F, but at most three quarters of
/// the B; the W takes the rest. One seen only in parts has a B of their sum.
///
/// Clocks of different machines are set by the messages between them. All recordings have the same placement. Throws
/// InvalidArgument when there is nothing to profile, when a stage has moved, and when an action appears without what
/// must go with it; ScheduleError when what was computed is no schedule.
Profile profile(std::span<const Recording> recordings, const ProfileOptions& options = {});

/// The time from the end of a step to the end of the next that a profile predicts for a schedule over the same stages:
/// the median of simulations with its jitter, at the paces of its steps.
double predicted_period(const Profile& profile, const Schedule& schedule);

}  // namespace stagecraft

#pragma once

#include <span>
#include <string>
#include <vector>

#include "stagecraft/schedule/timeline.h"
#include "stagecraft/sim/costs.h"

/// Costs measured from recordings of real runs.
namespace stagecraft {

struct ProfileOptions {
  /// Number of warm-up steps to leave out at the start of each recording. -1 leaves out the first step, whose
  /// allocations make it slow, unless it is the only one.
  int skip = -1;
};

/// The measured times of one recording, for comparison with `predicted_period` of its schedule.
struct ProfiledRun {
  std::string name;
  Schedule schedule;  ///< The recorded computes and REDUCE_GRADs, in their order.
  int steps = 0;      ///< Counted steps.
  /// Medians over the counted steps. The period runs from the end of the previous step to the end of the step, the
  /// makespan from the step's first action to its end. With a single step, both are its makespan.
  double measured_period = 0;
  double measured_makespan = 0;
};

struct Profile {
  /// In seconds, one entry per stage. Memory is not recorded: it stays at one unit per activation.
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

/// Measures the costs of actions and messages. A cost is the median over steps of the mean within each step, divided by
/// the rank's slowdown in that step. It is based on means because the time of a step is a sum of means, not of medians.
///
/// The cost of an action is the time since the end of the previous action, without its wait, plus the time to post its
/// SEND and RECV. The latency of a message is the time from the end of its SEND to the start of its consumer, over
/// messages that the consumer waited for; a link with messages of very different sizes gets a bandwidth too. The time
/// from the end of a step on all ranks to a rank's next step counts as `optimizer`, divided among the rank's stages.
/// The time that a rank waits for gradient averages at the end of a step counts as `reduce_grad`.
///
/// A stage recorded only with B is split: the I costs as much as the F, but at most three quarters of the B; the W
/// costs the rest. A stage recorded only with I and W gets their sum as B.
///
/// Clocks of different machines are aligned by the messages between them. All recordings must have the same placement.
/// Throws InvalidArgument when there is no step to profile, when a rank has no timeline, when placements differ, or
/// when a rank has recorded an action of a stage it does not compute; ScheduleError when the computes are not a
/// schedule.
Profile profile(std::span<const Recording> recordings, const ProfileOptions& options = {});

/// Predicts the time from the end of one step to the end of the next, for a schedule over the same stages: the median
/// makespan of simulations with the profile's jitter and the rank slowdowns of its steps.
double predicted_period(const Profile& profile, const Schedule& schedule);

}  // namespace stagecraft

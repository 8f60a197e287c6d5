#pragma once

#include <vector>

#include "stagecraft/sim/simulator.h"

namespace stagecraft {

/// Slack of every slot, by rank: by how much its action can end later before the step takes longer, if all rows keep
/// their order. Actions of the critical path have none. A message is taken to need its latency and its size over the
/// bandwidth; what it waits for a busy link or for parameters counts as slack of its sender. Throws InvalidArgument
/// unless the simulation was run with `keep_times`, ScheduleError for a schedule that cannot run.
std::vector<std::vector<double>> slack(const Schedule& schedule, const Costs& costs, const Simulation& simulation);

}  // namespace stagecraft

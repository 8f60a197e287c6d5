#pragma once

#include "reply.h"
#include "stagecraft/schedule/timeline.h"
#include "stagecraft/sim/simulator.h"

/// Numbers that the charts are drawn from.
namespace stagecraft::page {

/// Numbers per action of "actions": rank, slot, kind, stage, microbatch, then kind, stage and microbatch of an
/// overlap's second half (kind 0 if there is none), start, end, slack, 1 on the critical path.
inline constexpr int kNumbersPerAction = 12;

/// Simulates the schedule and adds "actions", "memory" (rank, time, memory) and the facts about it to the reply.
void add_simulation(Reply& reply, const Schedule& schedule, const Costs& costs);

/// Adds the actions of a schedule that cannot run, each in its slot, from time slot to slot + 1.
void add_slots(Reply& reply, const std::vector<Row>& rows);

/// Adds the computes of a recorded step under `name`; the time of an action is without its wait, which stands in place
/// of slack.
void add_timeline(Reply& reply, const std::string& name, const StepTimelines& step);

}  // namespace stagecraft::page

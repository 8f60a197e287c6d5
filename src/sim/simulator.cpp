#include "stagecraft/sim/simulator.h"

#include <algorithm>

#include "memory.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/in_parts.h"
#include "stagecraft/core/random.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft {
namespace {

using detail::Arrivals;

/// Runs each rank as far as its messages have arrived. Times depend only on the rank's own past and on arrivals, so the
/// order in which ranks are visited does not matter.
class Replay {
 public:
  Replay(const Schedule& schedule, const Costs& costs, const SimulationOptions& options)
      : schedule_(schedule),
        costs_(costs),
        options_(options),
        action_costs_(costs, schedule.placement),
        communicates_(schedule.communicates()),
        flow_(schedule),
        arrivals_(schedule) {
    ranks_.resize(schedule.rows.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r].times.resize(schedule.rows[r].size());
      ranks_[r].random.seed(options.seed + r);
    }
  }

  Simulation run() {
    flow_.run([&](std::size_t rank, const Action& action) { return run_action(rank, action); });
    const int blocked = flow_.first_blocked();
    if (blocked >= 0) refuse(static_cast<std::size_t>(blocked));
    Simulation simulation;
    simulation.ranks.resize(ranks_.size());
    if (options_.keep_memory) simulation.memory.resize(ranks_.size());
    in_parts(ranks_.size(), schedule_.slots(), [&](std::size_t begin, std::size_t end) {
      for (std::size_t r = begin; r < end; ++r) finish(r, simulation);
    });
    for (const RankOutcome& rank : simulation.ranks) {
      simulation.makespan = std::max(simulation.makespan, rank.end);
      simulation.span = std::max(simulation.span, rank.span());
    }
    if (options_.keep_times) {
      for (Rank& rank : ranks_) simulation.times.push_back(std::move(rank.times));
    }
    return simulation;
  }

 private:
  struct OutgoingLink {
    RankId to = {};
    LinkCosts costs = {};
    double free = 0;  // when the last transfer ends
  };
  struct Rank {
    double now = 0;
    std::size_t next = 0;
    std::vector<ActionTime> times;
    std::vector<OutgoingLink> links;  // few: a rank has few neighbours
    Random random;
  };

  bool run_action(std::size_t r, const Action& action) {
    Rank& rank = ranks_[r];
    double start = rank.now;
    if (!wait_for_input(action.first(), start)) return false;
    if (action.is_overlap() && !wait_for_input(action.second(), start)) return false;
    double cost = action_costs_.of(action);
    if (options_.jitter > 0) cost *= std::max(0.0, 1 + options_.jitter * rank.random.normal());
    const double end = start + cost;
    rank.times[rank.next++] = {start, end};
    rank.now = end;
    for_each_part(action, [&](const Action& part) {
      const Action send = !communicates_         ? message_given(schedule_.placement, part)
                          : is_send(part.kind()) ? part
                                                 : Action::idle();
      if (!send.is_idle()) deliver(rank, send);
    });
    return true;
  }

  bool wait_for_input(const Action& part, double& start) const {
    const Action send = message_needed(schedule_.placement, part);
    if (send.is_idle()) return true;
    const double arrival = arrivals_.of(send);
    if (arrival == Arrivals::kNever) return false;
    start = std::max(start, arrival);
    return true;
  }

  OutgoingLink& link_to(Rank& rank, RankId from, RankId to) {
    for (OutgoingLink& link : rank.links) {
      if (link.to == to) return link;
    }
    return rank.links.emplace_back(OutgoingLink{.to = to, .costs = costs_.between(from, to)});
  }

  void deliver(Rank& rank, const Action& send) {
    const RankId from = schedule_.placement.rank_of(send.stage());
    const RankId to = schedule_.placement.rank_of(peer_stage(send));
    OutgoingLink& link = link_to(rank, from, to);
    const StageCosts& stage = costs_.of(send.stage());
    const double bytes = send.kind() == ActionKind::kSendForward ? stage.forward_bytes : stage.backward_bytes;
    const double transfer = link.costs.bandwidth > 0 ? bytes / link.costs.bandwidth : 0;
    link.free = std::max(link.free, rank.now) + transfer;
    const double arrival = link.free + link.costs.latency;
    arrivals_.of(send) = arrival;
    if (!costs_.overlap_communication) rank.now = arrival;
    flow_.wake(to.index());
  }

  void finish(std::size_t r, Simulation& simulation) const {
    const Rank& rank = ranks_[r];
    const Row& row = schedule_.rows[r];
    RankOutcome& outcome = simulation.ranks[r];
    bool first = true;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!is_compute(row[i].kind())) continue;
      if (first) outcome.first_start = rank.times[i].start;
      first = false;
      outcome.last_end = rank.times[i].end;
      outcome.busy += rank.times[i].end - rank.times[i].start;
    }
    outcome.end = rank.now;
    for (const StageId stage : schedule_.placement.stages_of(RankId(r))) {
      outcome.end += costs_.slowdown(RankId(r)) * costs_.of(stage).optimizer;
    }
    outcome.peak_memory = detail::replay_memory(schedule_, costs_, arrivals_, RankId(r), rank.times,
                                                options_.keep_memory ? &simulation.memory[r] : nullptr);
  }

  [[noreturn]] void refuse(std::size_t r) const {
    const std::size_t step = flow_.position()[r];
    const std::string action = to_text(schedule_.rows[r][step]);
    throw ScheduleError("rank " + std::to_string(r) + ", step " + std::to_string(step) + ": " + action +
                            ": what it needs never arrives: run check to see why",
                        RankId(r), static_cast<int>(step), action);
  }

  const Schedule& schedule_;
  const Costs& costs_;
  const SimulationOptions& options_;
  ActionCosts action_costs_;
  bool communicates_;
  Dataflow flow_;
  Arrivals arrivals_;
  std::vector<Rank> ranks_;
};

double idle_part(const std::vector<RankOutcome>& ranks, double time) {
  if (ranks.empty() || time <= 0) return 0;
  double busy = 0;
  for (const RankOutcome& rank : ranks) busy += rank.busy;
  return 1 - busy / (time * static_cast<double>(ranks.size()));
}

}  // namespace

double Simulation::bubble_span() const { return idle_part(ranks, span); }
double Simulation::bubble_makespan() const { return idle_part(ranks, makespan); }

double Simulation::peak_memory() const {
  double peak = 0;
  for (const RankOutcome& rank : ranks) peak = std::max(peak, rank.peak_memory);
  return peak;
}

Simulation simulate(const Schedule& schedule, const Costs& costs, const SimulationOptions& options) {
  require_sound(schedule);
  return Replay(schedule, costs, options).run();
}

}  // namespace stagecraft

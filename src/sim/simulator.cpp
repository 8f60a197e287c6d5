#include "stagecraft/sim/simulator.h"

#include <algorithm>

#include "memory.h"
#include "recomputed.h"
#include "replica_stream.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/in_parts.h"
#include "stagecraft/core/random.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft {
namespace {

using detail::Arrivals;
using detail::Recomputed;
using detail::ReplicaStream;

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
        has_more_(costs.has_more_than_activations()),
        flow_(schedule),
        arrivals_(schedule),
        recomputed_(schedule, costs) {
    ranks_.resize(schedule.rows.size());
    if (costs.replicas > 1) {
      for (int r = 0; r < schedule.ranks(); ++r) streams_.emplace_back(costs, schedule.placement, RankId(r));
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r].times.resize(schedule.rows[r].size());
      if (costs.replicas > 1) ranks_[r].parameter_waits.resize(schedule.rows[r].size());
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
      for (Rank& rank : ranks_) {
        simulation.times.push_back(std::move(rank.times));
        if (!streams_.empty()) simulation.parameter_waits.push_back(std::move(rank.parameter_waits));
      }
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
    std::vector<double> parameter_waits;  // with replicas
    std::vector<OutgoingLink> links;      // few: a rank has few neighbours
    Random random;
  };

  bool run_action(std::size_t r, const Action& action) {
    Rank& rank = ranks_[r];
    double start = rank.now;
    if (!wait_for_input(action.first(), start)) return false;
    if (action.is_overlap() && !wait_for_input(action.second(), start)) return false;
    double cost = action_costs_.of(action);
    if (recomputed_.any()) cost += cost_of_forwards(action);
    const double factor = options_.jitter > 0 ? std::max(0.0, 1 + options_.jitter * rank.random.normal()) : 1;
    if (options_.jitter > 0) cost *= factor;
    if (!streams_.empty()) {
      if (run_beside(r, action, factor)) return true;
      if (is_compute(action.kind())) start = wait_for_parameters(r, action, start, factor);
    }
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

  /// Time of the forwards that B and I compute again.
  [[nodiscard]] double cost_of_forwards(const Action& action) const {
    double cost = 0;
    for_each_part(action, [&](const Action& part) {
      if (!gives_input_gradient(part.kind()) || !recomputed_(part)) return;
      cost += action_costs_.of(ActionKind::kForward, part.stage());
    });
    return action.is_overlap() ? costs_.overlap_factor * cost : cost;
  }

  /// Whether the action is one that the communication stream does.
  bool run_beside(std::size_t r, const Action& action, double factor) {
    Rank& rank = ranks_[r];
    ActionTime& time = rank.times[rank.next];
    switch (action.kind()) {
      case ActionKind::kUnshard:
        time = streams_[r].unshard(action.stage(), rank.now, rank.next, factor);
        break;
      case ActionKind::kReshard:
        rank.now = streams_[r].reshard(action.stage(), rank.now, rank.next);
        time = {rank.now, rank.now};
        break;
      case ActionKind::kReduceGrad:
        time = streams_[r].reduce(action.stage(), rank.now, factor);
        break;
      default:
        return false;
    }
    ++rank.next;
    return true;
  }

  /// `start` is when the messages are there.
  double wait_for_parameters(std::size_t r, const Action& action, double start, double factor) {
    double whole = start;
    for_each_part(action, [&](const Action& part) {
      whole = std::max(whole, streams_[r].whole_at(part.stage(), ranks_[r].now, ranks_[r].next, factor));
    });
    streams_[r].add_exposed(whole - start);
    ranks_[r].parameter_waits[ranks_[r].next] = whole - start;
    return whole;
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

  void finish(std::size_t r, Simulation& simulation) {
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
    if (!streams_.empty()) {
      outcome.end = streams_[r].finish(rank.now, trains(row));
      outcome.communication = streams_[r].communication();
      outcome.exposed = streams_[r].exposed();
    }
    for (const StageId stage : schedule_.placement.stages_of(RankId(r))) {
      outcome.end += costs_.slowdown(RankId(r)) * costs_.of(stage).optimizer;
    }
    std::vector<MemoryPoint>* curve = options_.keep_memory ? &simulation.memory[r] : nullptr;
    if (has_more_) {
      outcome.at_peak = detail::replay_all_memory({.schedule = schedule_,
                                                   .costs = costs_,
                                                   .arrivals = arrivals_,
                                                   .rank = RankId(r),
                                                   .times = rank.times,
                                                   .recomputed = recomputed_,
                                                   .stream = streams_.empty() ? nullptr : &streams_[r]},
                                                  curve);
      outcome.peak_memory = outcome.at_peak.total();
    } else {
      outcome.peak_memory = detail::replay_memory(schedule_, costs_, arrivals_, RankId(r), rank.times, curve);
      outcome.at_peak.activations = outcome.peak_memory;
    }
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
  bool has_more_;  // than activations to hold
  Dataflow flow_;
  Arrivals arrivals_;
  Recomputed recomputed_;
  std::vector<ReplicaStream> streams_;  // by rank, with replicas
  std::vector<Rank> ranks_;
};

double idle_part(const std::vector<RankOutcome>& ranks, double time) {
  if (ranks.empty() || time <= 0) return 0;
  double busy = 0;
  for (const RankOutcome& rank : ranks) busy += rank.busy;
  return 1 - busy / (time * static_cast<double>(ranks.size()));
}

/// Changes a simulation of the schedule that passes have made of `schedule` into one of `schedule`: with times of the
/// slots that it has.
void undo_passes(Simulation& simulation, const Schedule& schedule, const Schedule& lowered) {
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    std::vector<ActionTime> times;
    std::vector<double> waits;
    std::size_t at = 0;
    double now = 0;
    for (const Action& action : schedule.rows[r]) {
      if (action.is_idle()) {
        times.push_back({now, now});
        waits.push_back(0);
        continue;
      }
      while (!is_compute(lowered.rows[r][at].kind())) ++at;
      times.push_back(simulation.times[r][at]);
      waits.push_back(simulation.parameter_waits[r][at]);
      now = times.back().end;
      ++at;
    }
    simulation.times[r] = std::move(times);
    simulation.parameter_waits[r] = std::move(waits);
  }
}

}  // namespace

double Simulation::bubble_span() const { return idle_part(ranks, span); }
double Simulation::bubble_makespan() const { return idle_part(ranks, makespan); }

double Simulation::peak_memory() const {
  double peak = 0;
  for (const RankOutcome& rank : ranks) peak = std::max(peak, rank.peak_memory);
  return peak;
}

double Simulation::hidden_communication() const {
  double communication = 0;
  double exposed = 0;
  for (const RankOutcome& rank : ranks) {
    communication += rank.communication;
    exposed += rank.exposed;
  }
  return communication > 0 ? std::max(0.0, 1 - exposed / communication) : 1;
}

Simulation simulate(const Schedule& schedule, const Costs& costs, const SimulationOptions& options) {
  require_sound(schedule);
  if (costs.replicas <= 1 || schedule.is_lowered()) return Replay(schedule, costs, options).run();
  Schedule lowered = schedule;
  // As a pipeline lowers it.
  run_passes(lowered,
             costs.shard == Shard::kParameters ? "unshard_reshard=2,reduce_grad" : "unshard_reshard,reduce_grad");
  Simulation simulation = Replay(lowered, costs, options).run();
  if (options.keep_times) undo_passes(simulation, schedule, lowered);
  return simulation;
}

}  // namespace stagecraft

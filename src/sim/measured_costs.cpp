#include "measured_costs.h"

#include <cmath>
#include <utility>

#include "stagecraft/core/measurement.h"

namespace stagecraft::detail {
namespace {

constexpr double kVeryDifferent = 2;  // ratio of sizes from which latency and bandwidth are told apart

double smallest_delay(const std::vector<RecordedMessage>& messages) {
  double smallest = HUGE_VAL;
  for (const RecordedMessage& message : messages) smallest = std::min(smallest, message.delay());
  return std::max(0.0, smallest);
}

bool had_arrived(const RecordedMessage& message, double delay) { return message.sent + delay < message.asked; }

/// Sizes and delays of the messages that a consumer waited for, in one range of sizes.
struct Waits {
  std::vector<double> bytes;
  std::vector<double> delays;
};

}  // namespace

void LinkProfile::add(const RecordedMessage& message) {
  links_[{message.from.value, message.to.value}].messages.push_back(message);
}

void LinkProfile::close() {
  std::vector<double> known;  // latencies
  for (auto& [ends, link] : links_) {
    std::vector<double> delays;
    for (const RecordedMessage& message : link.messages) {
      if (message.was_late()) delays.push_back(message.delay());
    }
    link.was_waited_for = !delays.empty();
    link.delay = link.was_waited_for ? median(delays) : smallest_delay(link.messages);
    std::vector<double> takings;
    for (const RecordedMessage& message : link.messages) {
      if (had_arrived(message, link.delay)) takings.push_back(message.waited);
    }
    link.handling = std::min(median(takings), link.delay);
    if (link.was_waited_for) known.push_back(link.delay - link.handling);
  }
  if (known.empty()) return;
  // The delay of a message that no consumer waited for is only an upper bound: such a link counts as the others.
  for (auto& [ends, link] : links_) {
    if (!link.was_waited_for) link.delay = std::min(link.delay, median(known) + link.handling);
  }
}

double LinkProfile::handling(const RecordedMessage& message) const {
  const Link& link = links_.at({message.from.value, message.to.value});
  if (had_arrived(message, link.delay)) return message.waited;
  return std::min(link.handling, message.waited);
}

/// Fits a line through the medians of small and of large messages. Reports unlimited bandwidth when large messages are
/// not clearly slower.
LinkCosts LinkProfile::costs_of(const Link& link) {
  LinkCosts costs{.latency = std::max(0.0, link.delay - link.handling), .bandwidth = 0};
  double least = HUGE_VAL;
  double most = 0;
  for (const RecordedMessage& message : link.messages) {
    if (!message.was_late()) continue;
    least = std::min(least, static_cast<double>(message.bytes));
    most = std::max(most, static_cast<double>(message.bytes));
  }
  if (most <= kVeryDifferent * least) return costs;
  const double border = std::sqrt(std::max(least, 1.0) * most);
  Waits small;
  Waits large;
  for (const RecordedMessage& message : link.messages) {
    if (!message.was_late()) continue;
    Waits& range = static_cast<double>(message.bytes) < border ? small : large;
    range.bytes.push_back(static_cast<double>(message.bytes));
    range.delays.push_back(message.delay());
  }
  const double longer = median(large.delays) - median(small.delays);
  if (longer <= median(small.delays)) return costs;  // a smaller difference may be noise
  costs.bandwidth = (median(large.bytes) - median(small.bytes)) / longer;
  costs.latency = std::max(0.0, median(small.delays) - median(small.bytes) / costs.bandwidth - link.handling);
  return costs;
}

void LinkProfile::write(Costs& costs) const {
  std::vector<double> latencies;
  for (const auto& [ends, link] : links_) {
    costs.links.push_back({RankId(ends.first), RankId(ends.second), costs_of(link)});
    latencies.push_back(costs.links.back().costs.latency);
  }
  costs.link.latency = median(latencies);
}

namespace {

// Paces are computed from costs and costs from paces, alternating until both converge.
constexpr int kMostTurns = 200;
constexpr double kSettled = 1e-12;

/// The kind of action to whose cost the time of `action` is added.
ActionKind charged_kind(const RecordedStep& step, const Action& action) {
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

}  // namespace

void WorkProfile::add(const RecordedStep& step, const LinkProfile& links) {
  StepSums& sums = steps_.emplace_back(static_cast<std::size_t>(placement_.stages()));
  for (std::size_t r = 0; r < step.ranks().size(); ++r) add_rank(step, RankId(r), links, sums);
}

void WorkProfile::add_rank(const RecordedStep& step, RankId rank, const LinkProfile& links, StepSums& sums) {
  const Timeline& timeline = step.ranks()[rank.index()];
  const std::vector<OwnTime> times = own_times(timeline);
  double end = timeline.front().start;  // of all actions so far; what passes until the next one starts is part of that
  for (std::size_t i = 0; i < timeline.size(); ++i) {
    const Span& span = timeline[i];
    const ActionKind kind = charged_kind(step, span.action);
    const auto k = static_cast<std::size_t>(kind);
    Sums& stage = sums[span.action.stage().index()];
    if (span.beside) {
      stage.seconds[k] += span.waited;
      continue;
    }
    double busy = std::max(0.0, span.start - end) + times[i].worked;
    if (const auto message = step.message_for(span, rank)) busy += std::min(links.handling(*message), times[i].waited);
    stage.seconds[k] += busy;
    end = std::max(end, span.end);
    if (kind != span.action.kind()) continue;
    stage.count[k] += 1;
    stage.own[k] += busy;
    stage.squares[k] += busy * busy;
  }
}

void WorkProfile::close() {
  const auto ranks = static_cast<std::size_t>(placement_.ranks());
  paces_.assign(steps_.size(), std::vector<double>(ranks, 1.0));
  set_costs();
  for (int turn = 0; turn < kMostTurns; ++turn) {
    if (set_paces() < kSettled) break;
    set_costs();
  }
  make_paces_typical();
}

/// A cost is the median over steps of the mean within each step, at pace 1: the time of a step is a sum of means.
void WorkProfile::set_costs() {
  costs_.assign(static_cast<std::size_t>(placement_.stages()), KindCosts{});
  for (std::size_t s = 0; s < costs_.size(); ++s) {
    const std::size_t rank = placement_.rank_of(StageId(s)).index();
    for (std::size_t kind = 0; kind < kActionKinds; ++kind) {
      std::vector<double> means;
      for (std::size_t step = 0; step < steps_.size(); ++step) {
        const Sums& sums = steps_[step][s];
        if (sums.count[kind] > 0) means.push_back(sums.seconds[kind] / sums.count[kind] / paces_[step][rank]);
      }
      costs_[s][kind] = means.empty() ? -1 : median(means);
    }
  }
}

/// A pace is the time of a rank's work in a step, divided by its cost. Returns the largest change of a pace.
double WorkProfile::set_paces() {
  double change = 0;
  for (std::size_t step = 0; step < steps_.size(); ++step) {
    std::vector<double> taken(paces_[step].size());
    std::vector<double> expected(paces_[step].size());
    for (std::size_t s = 0; s < costs_.size(); ++s) {
      const std::size_t rank = placement_.rank_of(StageId(s)).index();
      for (std::size_t kind = 0; kind < kActionKinds; ++kind) {
        if (!is_compute(static_cast<ActionKind>(kind)) || steps_[step][s].count[kind] == 0) continue;
        taken[rank] += steps_[step][s].seconds[kind];
        expected[rank] += steps_[step][s].count[kind] * costs_[s][kind];
      }
    }
    for (std::size_t rank = 0; rank < taken.size(); ++rank) {
      if (taken[rank] <= 0 || expected[rank] <= 0) continue;
      const double before = std::exchange(paces_[step][rank], taken[rank] / expected[rank]);
      change = std::max(change, std::abs(paces_[step][rank] - before));
    }
  }
  return change;
}

void WorkProfile::make_paces_typical() {
  for (int r = 0; r < placement_.ranks(); ++r) {
    const RankId rank(r);
    std::vector<double> own;
    for (const std::vector<double>& step : paces_) own.push_back(step[rank.index()]);
    const double typical = median(own);
    if (typical <= 0) continue;
    for (std::vector<double>& step : paces_) step[rank.index()] /= typical;
    for (const StageId stage : placement_.stages_of(rank)) {
      for (double& cost : costs_[stage.index()]) {
        if (cost > 0) cost *= typical;
      }
    }
  }
}

/// Long actions have more weight, because other ranks wait for them.
double WorkProfile::jitter_of(const StepSums& step) {
  double variance = 0;
  double squares = 0;
  for (const Sums& stage : step) {
    for (std::size_t kind = 0; kind < kActionKinds; ++kind) {
      if (!is_compute(static_cast<ActionKind>(kind)) || stage.count[kind] < 2) continue;
      const double mean = stage.own[kind] / stage.count[kind];
      const double freedom = stage.count[kind] / (stage.count[kind] - 1);
      variance += freedom * std::max(0.0, stage.squares[kind] - mean * stage.own[kind]);
      squares += mean * stage.own[kind];
    }
  }
  return squares > 0 ? std::sqrt(variance / squares) : 0;
}

double WorkProfile::jitter() const {
  std::vector<double> by_step;
  for (const StepSums& step : steps_) by_step.push_back(jitter_of(step));
  return std::min(1.0, median(by_step));
}

}  // namespace stagecraft::detail

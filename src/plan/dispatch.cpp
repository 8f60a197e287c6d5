#include "dispatch.h"

#include <algorithm>

#include "problem.h"

namespace stagecraft::detail {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

Dispatcher::Dispatcher(const Problem& problem)
    : problem_(problem), m_(static_cast<std::size_t>(problem.microbatches)), links_(problem) {
  ranks_.resize(static_cast<std::size_t>(problem.ranks));
  wake_.resize(ranks_.size());
  next_.resize(static_cast<std::size_t>(problem.stages));
  forward_at_.resize(next_.size() * m_);
  input_at_.resize(forward_at_.size());
  for (std::vector<double>& starts : starts_) starts.resize(forward_at_.size());
  for (std::vector<int>& slots : slots_) slots.resize(forward_at_.size());
}

void Dispatcher::reset(const Policy& policy, double cutoff) {
  hopeless_ = false;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    rank.row.clear();
    rank = {.allowance = cutoff - problem_.work[r],
            .left = 3 * problem_.microbatches * static_cast<int>(problem_.stages_of[r].size()),
            .row = std::move(rank.row)};
    wake_[r] = 0;
  }
  links_.reset();
  std::fill(forward_at_.begin(), forward_at_.end(), kNever);
  std::fill(input_at_.begin(), input_at_.end(), kNever);
  std::fill(forward_at_.begin(), forward_at_.begin() + problem_.microbatches, 0);
  for (std::size_t s = 0; s < next_.size(); ++s) {
    next_[s] = {.forward_due = policy.of(Part::kForward)[s * m_],
                .forward_at = forward_at_[s * m_],
                .input_due = kNever,
                .input_at = kNever,
                .weight_due = kNever,
                .done = {}};
  }
}

void Dispatcher::arrive(int rank, double time) {
  const auto r = static_cast<std::size_t>(rank);
  wake_[r] = std::min(wake_[r], std::max(ranks_[r].free, time));
}

Outcome Dispatcher::run(const Policy& policy, double cutoff) {
  reset(policy, cutoff);
  double now = 0;
  int unlocks = 0;
  while (!hopeless_) {
    const auto next = std::min_element(wake_.begin(), wake_.end());
    if (*next == kNever) {
      if (++unlocks > problem_.stages || !unlock(now, policy)) break;
      continue;
    }
    now = *next;
    *next = kNever;
    const auto r = static_cast<std::size_t>(next - wake_.begin());
    wake_[r] = std::min(wake_[r], decide(static_cast<int>(r), now, policy.slack, policy));
  }
  for (const Rank& rank : ranks_) parts_done_ += static_cast<double>(rank.row.size());
  Outcome outcome{.span = 0, .mean_span = 0};
  for (const Rank& rank : ranks_) {
    if (rank.left > 0) return {};
    outcome.span = std::max(outcome.span, rank.end - rank.first_start);
    outcome.mean_span += (rank.end - rank.first_start) / static_cast<double>(ranks_.size());
  }
  return outcome;
}

/// Breaks a deadlock in which every rank waits for its most urgent part: lets the first rank that has any ready part
/// start it. Returns false when no rank has one.
bool Dispatcher::unlock(double now, const Policy& policy) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const int left = ranks_[r].left;
    wake_[r] = std::min(wake_[r], decide(static_cast<int>(r), now, kNever, policy));
    if (ranks_[r].left < left) return true;
  }
  return false;
}

/// Starts at most one part on a free rank. Returns when the rank is free again or, if nothing was started, when the
/// next part becomes ready.
double Dispatcher::decide(int r, double now, double slack, const Policy& policy) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  if (rank.left == 0) return kNever;
  const double limit = problem_.limit[static_cast<std::size_t>(r)];

  double urgent = kNever;   // due time of the most urgent F or I, ready or not
  double blocked = kNever;  // due time of the most urgent F that has arrived but lacks memory
  double best = kNever;     // due time of the most urgent F or I that can start now
  double soonest = kNever;  // arrival of the next F or I to become ready
  double owed = kNever;     // due time of the most urgent W that can start now
  bool forwards_left = false;
  int best_stage = -1;
  int owed_stage = -1;
  Part best_part = Part::kForward;
  for (const int stage : problem_.stages_of[static_cast<std::size_t>(r)]) {
    const auto s = static_cast<std::size_t>(stage);
    const Next& next = next_[s];
    if (next.forward_due < kNever) {
      forwards_left = true;
      urgent = std::min(urgent, next.forward_due);
      const double needed = std::max(rank.memory, rank.passing + problem_.reserve[s]) + problem_.activation[s];
      if (needed > limit + kTinyMemory) {
        if (next.forward_at <= now) blocked = std::min(blocked, next.forward_due);
      } else if (next.forward_at > now) {
        soonest = std::min(soonest, next.forward_at);
      } else if (next.forward_due < best) {
        best = next.forward_due;
        best_stage = stage;
        best_part = Part::kForward;
      }
    }
    urgent = std::min(urgent, next.input_due);
    if (next.input_at > now) {
      soonest = std::min(soonest, next.input_at);
    } else if (next.input_due < best) {
      best = next.input_due;
      best_stage = stage;
      best_part = Part::kInput;
    }
    if (next.weight_due < owed) {
      owed = next.weight_due;
      owed_stage = stage;
    }
  }
  const bool take = best_stage >= 0 && best <= urgent + slack;
  bool weigh = false;
  if (owed_stage >= 0) {
    const double gap =
        forwards_left ? policy.gap
                      : policy.last_gap_first + (policy.last_gap_last - policy.last_gap_first) * r / problem_.ranks;
    const bool gap_is_wide = soonest - now >= gap * problem_.weight[static_cast<std::size_t>(owed_stage)];
    if (!forwards_left) {
      weigh = !take && gap_is_wide;
    } else if (take) {
      weigh = owed < best || (policy.make_room_first && blocked < best);
    } else {
      weigh = blocked <= urgent + slack || owed < urgent || (owed <= urgent + policy.reach && gap_is_wide);
    }
  }
  if (!weigh && !take) return soonest;
  start(r, weigh ? owed_stage : best_stage, weigh ? Part::kWeight : best_part, now, policy);
  return --rank.left == 0 ? kNever : rank.free;
}

void Dispatcher::start(int r, int stage, Part part, double now, const Policy& policy) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  const auto s = static_cast<std::size_t>(stage);
  Next& next = next_[s];
  const int microbatch = next.done[static_cast<std::size_t>(part)]++;
  const auto j = static_cast<std::size_t>(microbatch);
  starts_[static_cast<std::size_t>(part)][s * m_ + j] = now;
  slots_[static_cast<std::size_t>(part)][s * m_ + j] = static_cast<int>(rank.row.size());
  rank.row.push_back({stage, microbatch, part});
  if (rank.first_start < 0) {
    rank.first_start = now;
  } else {
    rank.allowance -= now - rank.end;
    hopeless_ = hopeless_ || rank.allowance < 0;
  }
  switch (part) {
    case Part::kForward:
      rank.memory += problem_.activation[s];
      rank.passing += problem_.activation[s] - problem_.whole[s];
      rank.end = now + problem_.forward[s];
      finish_forward(rank, s, j, policy);
      return;
    case Part::kInput:
      rank.memory += problem_.weight_gradient[s] - problem_.activation[s];
      rank.end = now + problem_.input[s];
      finish_input(rank, s, j, policy);
      return;
    case Part::kWeight:
      rank.memory -= problem_.weight_gradient[s];
      rank.end = rank.free = now + problem_.weight[s];
      next.weight_due = next.done[2] < next.done[1] ? policy.of(Part::kWeight)[s * m_ + j + 1] : kNever;
      return;
  }
}

void Dispatcher::finish_forward(Rank& rank, std::size_t s, std::size_t j, const Policy& policy) {
  Next& next = next_[s];
  const bool last = j + 1 == m_;
  next.forward_due = last ? kNever : policy.of(Part::kForward)[s * m_ + j + 1];
  next.forward_at = last ? kNever : forward_at_[s * m_ + j + 1];
  rank.free = rank.end;
  if (s + 1 == next_.size()) {
    input_at_[s * m_ + j] = rank.end;
  } else {
    const double arrival = links_.up(s, rank.end);
    if (problem_.holds_up(s, s + 1)) rank.free = arrival;
    forward_at_[(s + 1) * m_ + j] = arrival;
    if (next_[s + 1].done[0] == static_cast<int>(j)) next_[s + 1].forward_at = arrival;
    arrive(problem_.rank_of[s + 1], arrival);
  }
  if (next.done[1] == static_cast<int>(j)) {
    next.input_due = policy.of(Part::kInput)[s * m_ + j];
    next.input_at = input_at_[s * m_ + j];
  }
}

void Dispatcher::finish_input(Rank& rank, std::size_t s, std::size_t j, const Policy& policy) {
  Next& next = next_[s];
  const bool more = next.done[1] < next.done[0];
  next.input_due = more ? policy.of(Part::kInput)[s * m_ + j + 1] : kNever;
  next.input_at = more ? input_at_[s * m_ + j + 1] : kNever;
  if (next.done[2] == static_cast<int>(j)) next.weight_due = policy.of(Part::kWeight)[s * m_ + j];
  rank.free = rank.end;
  if (s == 0) return;
  const double arrival = links_.down(s, rank.end);
  if (problem_.holds_up(s, s - 1)) rank.free = arrival;
  input_at_[(s - 1) * m_ + j] = arrival;
  if (next_[s - 1].done[1] == static_cast<int>(j)) next_[s - 1].input_at = arrival;
  arrive(problem_.rank_of[s - 1], arrival);
}

std::vector<StepRow> Dispatcher::rows() const {
  std::vector<StepRow> rows;
  for (const Rank& rank : ranks_) rows.push_back(rank.row);
  return rows;
}

double Dispatcher::end_of(const Step& step) const {
  return start_of(step) + problem_.cost(step.part, static_cast<std::size_t>(step.stage));
}

void Dispatcher::critical_pairs(std::vector<std::pair<Step, Step>>& pairs) const {
  pairs.clear();
  const Rank* worst = &ranks_.front();
  for (const Rank& rank : ranks_) {
    if (rank.end - rank.first_start > worst->end - worst->first_start) worst = &rank;
  }
  Step step = worst->row.back();
  while (true) {
    const StepRow& row = ranks_[static_cast<std::size_t>(problem_.rank_of[static_cast<std::size_t>(step.stage)])].row;
    const int slot = slots_[static_cast<std::size_t>(step.part)][at(step)];
    const Step* before = slot > 0 ? &row[static_cast<std::size_t>(slot) - 1] : nullptr;
    if (before != nullptr && end_of(*before) >= start_of(step)) {
      pairs.emplace_back(*before, step);
      step = *before;
    } else if (step.part == Part::kForward && step.stage > 0) {
      --step.stage;
    } else if (step.part == Part::kInput && step.stage + 1 < problem_.stages) {
      ++step.stage;
    } else if (before != nullptr) {
      step = *before;  // a wait by choice, not for a message
    } else {
      return;
    }
  }
}

}  // namespace stagecraft::detail

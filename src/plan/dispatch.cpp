#include "dispatch.h"

#include <algorithm>

namespace stagecraft::detail {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kTinyMemory = 1e-9;  // sums of memory may differ in their last bits

}  // namespace

Dispatcher::Dispatcher(const Problem& problem) : problem_(problem) {
  ranks_.resize(static_cast<std::size_t>(problem.ranks));
  wake_.resize(ranks_.size());
  const auto stages = static_cast<std::size_t>(problem.stages);
  for (std::vector<int>& done : done_) done.resize(stages);
  forward_at_.resize(stages * static_cast<std::size_t>(problem.microbatches));
  input_at_.resize(forward_at_.size());
  for (std::vector<double>& starts : starts_) starts.resize(forward_at_.size());
  for (std::vector<int>& slots : slots_) slots.resize(forward_at_.size());
}

void Dispatcher::reset() {
  latest_start_ = 0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    rank.row.clear();
    rank = {.left = 3 * problem_.microbatches * static_cast<int>(problem_.stages_of[r].size()),
            .row = std::move(rank.row)};
    wake_[r] = 0;
  }
  for (std::vector<int>& done : done_) std::fill(done.begin(), done.end(), 0);
  std::fill(forward_at_.begin(), forward_at_.end(), kNever);
  std::fill(input_at_.begin(), input_at_.end(), kNever);
  std::fill(forward_at_.begin(), forward_at_.begin() + problem_.microbatches, 0);
}

void Dispatcher::arrive(int rank, double time) {
  const auto r = static_cast<std::size_t>(rank);
  wake_[r] = std::min(wake_[r], std::max(ranks_[r].free, time));
}

Outcome Dispatcher::run(const Policy& policy, double cutoff) {
  reset();
  double now = 0;
  int unlocks = 0;
  while (true) {
    const auto next = std::min_element(wake_.begin(), wake_.end());
    if (*next == kNever) {
      if (++unlocks > problem_.stages || !unlock(now, policy)) break;
      continue;
    }
    now = *next;
    if (now > cutoff + latest_start_) return {};
    *next = kNever;
    const auto r = static_cast<std::size_t>(next - wake_.begin());
    wake_[r] = std::min(wake_[r], decide(static_cast<int>(r), now, policy.slack, policy));
  }
  Outcome outcome{.span = 0, .mean_span = 0};
  for (const Rank& rank : ranks_) {
    if (rank.left > 0) return {};
    outcome.span = std::max(outcome.span, rank.free - rank.first_start);
    outcome.mean_span += (rank.free - rank.first_start) / static_cast<double>(ranks_.size());
  }
  return outcome;
}

/// Every rank waits for what is most urgent, and none of it will come: lets the first rank that can do anything do it.
bool Dispatcher::unlock(double now, const Policy& policy) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const int left = ranks_[r].left;
    wake_[r] = std::min(wake_[r], decide(static_cast<int>(r), now, kNever, policy));
    if (ranks_[r].left < left) return true;
  }
  return false;
}

/// Starts one part on a rank that is free and returns when it will be free again, or when to look again.
double Dispatcher::decide(int r, double now, double slack, const Policy& policy) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  if (rank.left == 0) return kNever;
  const int m = problem_.microbatches;
  const auto& [forwards, inputs, weights] = done_;

  double urgent = kNever;   // due time of the most urgent F or I, ready or not
  double blocked = kNever;  // of the most urgent F that is there but has no room
  double best = kNever;     // of the most urgent F or I that can start now
  double soonest = kNever;  // arrival of what will be ready next
  double owed = kNever;     // due time of the most urgent W that can start now
  double gap = policy.last_gap_first + (policy.last_gap_last - policy.last_gap_first) * r / problem_.ranks;
  bool forwards_left = false;
  int best_stage = -1;
  int owed_stage = -1;
  Part best_part = Part::kForward;
  for (const int stage : problem_.stages_of[static_cast<std::size_t>(r)]) {
    const auto s = static_cast<std::size_t>(stage);
    const std::size_t row = s * static_cast<std::size_t>(m);
    if (forwards[s] < m) {
      gap = policy.gap;
      forwards_left = true;
      const std::size_t at = row + static_cast<std::size_t>(forwards[s]);
      const double due = policy.of(Part::kForward)[at];
      urgent = std::min(urgent, due);
      const double needed = std::max(rank.memory, rank.passing + problem_.reserve[s]) + problem_.activation[s];
      if (needed > problem_.limit + kTinyMemory) {
        if (forward_at_[at] <= now) blocked = std::min(blocked, due);
      } else if (forward_at_[at] > now) {
        soonest = std::min(soonest, forward_at_[at]);
      } else if (due < best) {
        best = due;
        best_stage = stage;
        best_part = Part::kForward;
      }
    }
    if (inputs[s] < forwards[s]) {
      const std::size_t at = row + static_cast<std::size_t>(inputs[s]);
      const double due = policy.of(Part::kInput)[at];
      urgent = std::min(urgent, due);
      if (input_at_[at] > now) {
        soonest = std::min(soonest, input_at_[at]);
      } else if (due < best) {
        best = due;
        best_stage = stage;
        best_part = Part::kInput;
      }
    }
    if (weights[s] < inputs[s]) {
      const double due = policy.of(Part::kWeight)[row + static_cast<std::size_t>(weights[s])];
      if (due < owed) {
        owed = due;
        owed_stage = stage;
      }
    }
  }
  const bool take = best_stage >= 0 && best <= urgent + slack;
  bool weigh = false;
  if (owed_stage >= 0) {
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
  start(r, weigh ? owed_stage : best_stage, weigh ? Part::kWeight : best_part, now);
  return --rank.left == 0 ? kNever : rank.free;
}

void Dispatcher::start(int r, int stage, Part part, double now) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  const auto s = static_cast<std::size_t>(stage);
  const int microbatch = done_[static_cast<std::size_t>(part)][s]++;
  const auto m = static_cast<std::size_t>(problem_.microbatches);
  const auto j = static_cast<std::size_t>(microbatch);
  starts_[static_cast<std::size_t>(part)][s * m + j] = now;
  slots_[static_cast<std::size_t>(part)][s * m + j] = static_cast<int>(rank.row.size());
  rank.row.push_back({stage, microbatch, part});
  if (rank.first_start < 0) {
    rank.first_start = now;
    latest_start_ = std::max(latest_start_, now);
  }
  switch (part) {
    case Part::kForward:
      rank.memory += problem_.activation[s];
      rank.passing += problem_.activation[s] - problem_.whole[s];
      rank.free = now + problem_.forward[s];
      if (stage + 1 == problem_.stages) {
        input_at_[s * m + j] = rank.free;
      } else {
        forward_at_[(s + 1) * m + j] = rank.free + problem_.hop_up[s];
        arrive(problem_.rank_of[s + 1], rank.free + problem_.hop_up[s]);
      }
      return;
    case Part::kInput:
      rank.memory += problem_.weight_gradient[s] - problem_.activation[s];
      rank.free = now + problem_.input[s];
      if (stage > 0) {
        input_at_[(s - 1) * m + j] = rank.free + problem_.hop_down[s];
        arrive(problem_.rank_of[s - 1], rank.free + problem_.hop_down[s]);
      }
      return;
    case Part::kWeight:
      rank.memory -= problem_.weight_gradient[s];
      rank.free = now + problem_.weight[s];
      return;
  }
}

std::vector<StepRow> Dispatcher::rows() const {
  std::vector<StepRow> rows;
  for (const Rank& rank : ranks_) rows.push_back(rank.row);
  return rows;
}

double Dispatcher::end_of(const Step& step) const {
  const auto s = static_cast<std::size_t>(step.stage);
  const double cost = step.part == Part::kForward ? problem_.forward[s]
                      : step.part == Part::kInput ? problem_.input[s]
                                                  : problem_.weight[s];
  return start_of(step) + cost;
}

void Dispatcher::critical_pairs(std::vector<std::pair<Step, Step>>& pairs) const {
  pairs.clear();
  const Rank* worst = &ranks_.front();
  for (const Rank& rank : ranks_) {
    if (rank.free - rank.first_start > worst->free - worst->first_start) worst = &rank;
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
      step = *before;  // it waited although it need not have
    } else {
      return;
    }
  }
}

}  // namespace stagecraft::detail

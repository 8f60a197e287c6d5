// The local search over finished schedules: rows are simulated in their fixed order, and a move shifts one part.

#include <algorithm>
#include <cmath>

#include "annealing.h"

namespace stagecraft::detail {
namespace {

constexpr double kUnknown = -1;
constexpr int kCycles = 6;           // cooling cycles, each from the best so far
constexpr double kPolishHeat = 0.1;  // initial temperature of a cycle, in units of a microbatch's work

/// Simulates rows in their fixed order.
class FixedOrder {
 public:
  explicit FixedOrder(const Problem& problem)
      : problem_(problem),
        m_(static_cast<std::size_t>(problem.microbatches)),
        links_(problem),
        ranks_(problem.stages_of.size()) {
    forward_at_.resize(static_cast<std::size_t>(problem.stages) * m_);
    input_at_.resize(forward_at_.size());
  }

  /// Returns an infinite span when the order cannot execute.
  Outcome run(const std::vector<StepRow>& rows) {
    std::fill(forward_at_.begin(), forward_at_.end(), kUnknown);
    std::fill(forward_at_.begin(), forward_at_.begin() + problem_.microbatches, 0.0);
    std::fill(input_at_.begin(), input_at_.end(), kUnknown);
    std::fill(ranks_.begin(), ranks_.end(), Rank());
    links_.reset();
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        Rank& rank = ranks_[r];
        const std::size_t before = rank.next;
        while (rank.next < rows[r].size() && advance(rank, rows[r][rank.next])) ++rank.next;
        progress = progress || rank.next > before;
      }
    }
    Outcome outcome{.span = 0, .mean_span = 0};
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (ranks_[r].next < rows[r].size()) return {};
      const double span = ranks_[r].end - ranks_[r].start;
      outcome.span = std::max(outcome.span, span);
      outcome.mean_span += span / static_cast<double>(rows.size());
    }
    return outcome;
  }

  [[nodiscard]] bool fits(const StepRow& row, std::size_t r) const {
    double memory = 0;
    for (const Step& step : row) {
      const auto s = static_cast<std::size_t>(step.stage);
      switch (step.part) {
        case Part::kForward:
          memory += problem_.activation[s];
          if (memory > problem_.limit[r] + kTinyMemory) return false;
          break;
        case Part::kInput:
          memory += problem_.weight_gradient[s] - problem_.activation[s];
          break;
        case Part::kWeight:
          memory -= problem_.weight_gradient[s];
          break;
      }
    }
    return true;
  }

 private:
  struct Rank {
    std::size_t next = 0;
    double start = 0;  // start of its first part
    double end = 0;    // end of its last part so far
    double free = 0;   // later than `end` when a message holds up its sender
  };

  /// Runs one step. Returns false while its input has not been sent. The rows guarantee that F, I and W of a microbatch
  /// are in order.
  bool advance(Rank& rank, const Step& step) {
    const auto s = static_cast<std::size_t>(step.stage);
    const std::size_t at = s * m_ + static_cast<std::size_t>(step.microbatch);
    const double ready = step.part == Part::kForward ? forward_at_[at] : step.part == Part::kInput ? input_at_[at] : 0;
    if (ready == kUnknown) return false;
    const double start = std::max(rank.free, ready);
    if (rank.next == 0) rank.start = start;
    rank.end = start + problem_.cost(step.part, s);
    rank.free = rank.end;
    if (step.part == Part::kForward) {
      if (s + 1 == static_cast<std::size_t>(problem_.stages)) {
        input_at_[at] = rank.end;
      } else {
        forward_at_[at + m_] = links_.up(s, rank.end);
        if (problem_.holds_up(s, s + 1)) rank.free = forward_at_[at + m_];
      }
    } else if (step.part == Part::kInput && s > 0) {
      input_at_[at - m_] = links_.down(s, rank.end);
      if (problem_.holds_up(s, s - 1)) rank.free = input_at_[at - m_];
    }
    return true;
  }

  const Problem& problem_;
  std::size_t m_;
  Links links_;
  std::vector<Rank> ranks_;
  std::vector<double> forward_at_;  // arrival by stage and microbatch
  std::vector<double> input_at_;
};

/// Moves a random part of a random row by a few slots. Checks the order of microbatches and the memory limit; the
/// caller finds out the rest by running the rows. Returns the row, or -1 when the move is not possible.
int move_one(const FixedOrder& order, std::vector<StepRow>& rows, Random& random, StepRow& before) {
  const std::size_t r = random.next() % rows.size();
  StepRow& row = rows[r];
  if (row.size() < 2) return -1;
  const std::size_t from = random.next() % row.size();
  const std::size_t reach = 1 + random.next() % (random.uniform() < 0.7 ? 3 : 12);
  const bool up = random.uniform() < 0.5;
  if (up ? from + reach >= row.size() : from < reach) return -1;
  const std::size_t to = up ? from + reach : from - reach;
  for (std::size_t i = std::min(from, to); i <= std::max(from, to); ++i) {
    const bool same_stage = i != from && row[i].stage == row[from].stage;
    if (same_stage && (row[i].part == row[from].part || row[i].microbatch == row[from].microbatch)) return -1;
  }
  before = row;
  const auto at = [&](std::size_t i) { return row.begin() + static_cast<std::ptrdiff_t>(i); };
  if (up) {
    std::rotate(at(from), at(from + 1), at(to + 1));
  } else {
    std::rotate(at(to), at(from), at(from + 1));
  }
  if (order.fits(row, r)) return static_cast<int>(r);
  row = before;
  return -1;
}

}  // namespace

Outcome polish(const Problem& problem, std::vector<StepRow>& rows, std::uint64_t seed, std::int64_t trials,
               double lower_bound, const std::function<bool()>& cancelled) {
  FixedOrder order(problem);
  Random random;
  random.seed(seed + 0x51);
  Outcome best = order.run(rows);
  std::vector<StepRow> best_rows = rows;
  StepRow before;
  const std::int64_t per_cycle = trials / kCycles;
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    rows = best_rows;
    double value = compared(best);
    for (std::int64_t i = 0; i < per_cycle && best.span > lower_bound * (1 + kSame) && !cancelled(); ++i) {
      const int moved = move_one(order, rows, random, before);
      if (moved < 0) continue;
      const Outcome outcome = order.run(rows);
      const double left = 1 - static_cast<double>(i) / static_cast<double>(per_cycle);
      const double heat = kPolishHeat * problem.unit * left * left * left;
      const double worse = compared(outcome) - value;
      if (worse > 0 && !(heat > 0 && random.uniform() < std::exp(-worse / heat))) {
        rows[static_cast<std::size_t>(moved)] = before;
        continue;
      }
      value = compared(outcome);
      if (value >= compared(best) - 1e-12) continue;
      best = outcome;
      best_rows = rows;
    }
  }
  rows = best_rows;
  return best;
}

}  // namespace stagecraft::detail

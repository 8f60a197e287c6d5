#include "polish.h"

#include <algorithm>
#include <cmath>

#include "stagecraft/core/random.h"

namespace stagecraft::detail {
namespace {

constexpr double kUnknown = -1;
constexpr double kTinyMemory = 1e-9;
constexpr int kCycles = 6;     // of cooling down, each from the best so far
constexpr double kHeat = 0.1;  // at the start of a cycle, in units of a microbatch's work
constexpr double kMeanWeight = 0.02;

double compared(const Outcome& outcome) { return outcome.span + kMeanWeight * outcome.mean_span; }

/// Times of rows whose order is fixed.
class FixedOrder {
 public:
  explicit FixedOrder(const Problem& problem)
      : problem_(problem),
        m_(static_cast<std::size_t>(problem.microbatches)),
        next_(problem.stages_of.size()),
        now_(problem.stages_of.size()) {
    forward_end_.resize(static_cast<std::size_t>(problem.stages) * m_);
    input_end_.resize(forward_end_.size());
  }

  /// An infinite span when the order cannot execute.
  Outcome run(const std::vector<StepRow>& rows) {
    std::fill(forward_end_.begin(), forward_end_.end(), kUnknown);
    std::fill(input_end_.begin(), input_end_.end(), kUnknown);
    std::fill(next_.begin(), next_.end(), 0);
    std::fill(now_.begin(), now_.end(), 0.0);
    Outcome outcome{.span = 0, .mean_span = 0};
    starts_.assign(rows.size(), 0);
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const std::size_t before = next_[r];
        while (next_[r] < rows[r].size() && advance(r, rows[r][next_[r]])) ++next_[r];
        progress = progress || next_[r] > before;
      }
    }
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (next_[r] < rows[r].size()) return {};
      outcome.span = std::max(outcome.span, now_[r] - starts_[r]);
      outcome.mean_span += (now_[r] - starts_[r]) / static_cast<double>(rows.size());
    }
    return outcome;
  }

  [[nodiscard]] bool fits(const StepRow& row) const {
    double memory = 0;
    for (const Step& step : row) {
      const auto s = static_cast<std::size_t>(step.stage);
      switch (step.part) {
        case Part::kForward:
          memory += problem_.activation[s];
          if (memory > problem_.limit + kTinyMemory) return false;
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
  bool advance(std::size_t r, const Step& step) {
    const auto s = static_cast<std::size_t>(step.stage);
    const std::size_t at = s * m_ + static_cast<std::size_t>(step.microbatch);
    double ready = 0;
    double cost = 0;
    switch (step.part) {
      case Part::kForward:
        if (s > 0) {
          if (forward_end_[at - m_] == kUnknown) return false;
          ready = forward_end_[at - m_] + problem_.hop_up[s - 1];
        }
        cost = problem_.forward[s];
        break;
      case Part::kInput:
        if (forward_end_[at] == kUnknown) return false;
        if (step.stage + 1 < problem_.stages) {
          if (input_end_[at + m_] == kUnknown) return false;
          ready = input_end_[at + m_] + problem_.hop_down[s + 1];
        }
        cost = problem_.input[s];
        break;
      case Part::kWeight:
        if (input_end_[at] == kUnknown) return false;
        cost = problem_.weight[s];
        break;
    }
    const double start = std::max(now_[r], ready);
    if (next_[r] == 0) starts_[r] = start;
    now_[r] = start + cost;
    if (step.part == Part::kForward) forward_end_[at] = now_[r];
    if (step.part == Part::kInput) input_end_[at] = now_[r];
    return true;
  }

  const Problem& problem_;
  std::size_t m_;
  std::vector<std::size_t> next_;
  std::vector<double> now_;
  std::vector<double> starts_;
  std::vector<double> forward_end_;
  std::vector<double> input_end_;
};

/// Moves a random part of a random row a few places; whether microbatches stay in order and memory suffices is checked
/// at once, everything else by running it. Returns the row, or -1 when the move is not possible.
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
  if (order.fits(row)) return static_cast<int>(r);
  row = before;
  return -1;
}

}  // namespace

Outcome polish(const Problem& problem, std::vector<StepRow>& rows, std::uint64_t seed, std::int64_t trials,
               const std::function<bool()>& cancelled) {
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
    for (std::int64_t i = 0; i < per_cycle && !cancelled(); ++i) {
      const int moved = move_one(order, rows, random, before);
      if (moved < 0) continue;
      const Outcome outcome = order.run(rows);
      const double left = 1 - static_cast<double>(i) / static_cast<double>(per_cycle);
      const double heat = kHeat * problem.unit * left * left * left;
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

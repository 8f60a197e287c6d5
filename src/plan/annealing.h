#pragma once

#include <functional>

#include "search.h"
#include "stagecraft/core/random.h"

/// The three local searches, all by simulated annealing: over due times, over building blocks, and over the order of a
/// finished schedule.
namespace stagecraft::detail {

/// The objective: the span, plus a small share of the mean span to guide the search across plateaus.
constexpr double kMeanWeight = 0.02;
inline double compared(const Outcome& outcome) { return outcome.span + kMeanWeight * outcome.mean_span; }

/// The largest span that an outcome with objective `value` can have.
inline double largest_span(const Problem& problem, double value) { return value - kMeanWeight * problem.mean_work; }

/// Simulated annealing over due times, from one start. Climbers are independent, so any thread may run any of them.
class Climber {
 public:
  Climber(const Problem& problem, Policy start, const Outcome& outcome, std::uint64_t seed);

  /// Continues from the best so far and dispatches about `parts` parts. `heat` is the initial temperature: a step that
  /// is worse by `heat` is accepted with probability 1/e. `is_over` is called between trials.
  template <typename IsOver>
  void climb(Dispatcher& dispatcher, double parts, double heat, const IsOver& is_over);

  [[nodiscard]] const Policy& best() const { return best_; }
  [[nodiscard]] const Outcome& outcome() const { return best_outcome_; }
  [[nodiscard]] double value() const { return compared(best_outcome_); }
  [[nodiscard]] std::int64_t trials() const { return trials_; }

 private:
  void step(Dispatcher& dispatcher, double heat);
  void rebase(Dispatcher& dispatcher);
  void note(const Outcome& outcome);

  const Problem* problem_;
  Random random_;
  Policy best_;
  Outcome best_outcome_;
  Policy current_;
  double current_value_ = 0;
  std::vector<std::pair<Step, Step>> pairs_;  // critical pairs of `current_`
  std::int64_t trials_ = 0;
};

template <typename IsOver>
void Climber::climb(Dispatcher& dispatcher, double parts, double heat, const IsOver& is_over) {
  if (is_over(*this)) return;
  current_ = best_;
  current_value_ = compared(dispatcher.run(current_));
  dispatcher.critical_pairs(pairs_);
  const double start = dispatcher.parts_done();
  for (double spent = 0; spent < parts && !is_over(*this); spent = dispatcher.parts_done() - start) {
    const double left = 1 - spent / parts;
    step(dispatcher, heat * left * left);
  }
}

/// Local search over building blocks at a constant temperature (Metropolis rule), with restarts.
class BlockSearch {
 public:
  /// Searches for a block that is good for `more` microbatches in addition to those of the problem.
  BlockSearch(const Problem& problem, int more, std::uint64_t seed);

  /// Ends after dispatching about `parts` parts, at the lower bound, or when `cancelled`.
  void run(Dispatcher& dispatcher, double parts, double lower_bound, const std::function<bool()>& cancelled);

  [[nodiscard]] const Candidate& best() const { return best_; }
  [[nodiscard]] const Block& best_block() const { return best_block_; }
  [[nodiscard]] std::int64_t trials() const { return trials_; }

 private:
  double draw(Dispatcher& dispatcher, Block& block, const std::function<bool()>& cancelled);
  double value_of(Dispatcher& dispatcher, const Block& block, double cutoff);

  const Problem& problem_;
  int more_;
  Random random_;
  double best_value_ = std::numeric_limits<double>::infinity();
  Candidate best_;
  Block best_block_;
  std::int64_t trials_ = 0;
};

/// Simulated annealing on a finished schedule: a move shifts a single part within its row. Unlike the dispatcher, it
/// can reach every order, so small cases end close to the optimum. The rows must be executable and within the memory
/// limit; so is the result, which is never worse. Ends early at the lower bound, or when `cancelled`, called between
/// trials.
Outcome polish(const Problem& problem, std::vector<StepRow>& rows, std::uint64_t seed, std::int64_t trials,
               double lower_bound, const std::function<bool()>& cancelled);

}  // namespace stagecraft::detail

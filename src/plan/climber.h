#pragma once

#include "dispatch.h"
#include "stagecraft/core/random.h"

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

}  // namespace stagecraft::detail

#include "climber.h"

#include <cmath>

#include "moves.h"
#include "tolerances.h"

namespace stagecraft::detail {
namespace {

constexpr double kPairShare = 0.3;  // share of steps that swap a critical pair
constexpr double kRebaseShare = 0.25;
constexpr double kHopeless = 12;  // in heats above the present value: acceptance is improbable beyond this

}  // namespace

Climber::Climber(const Problem& problem, Policy start, const Outcome& outcome, std::uint64_t seed)
    : problem_(&problem), best_(std::move(start)), best_outcome_(outcome) {
  random_.seed(seed);
}

void Climber::step(Dispatcher& dispatcher, double heat) {
  Policy changed = current_;
  if (!pairs_.empty() && random_.uniform() < kPairShare) {
    swap_pair(changed, *problem_, pairs_[random_.next() % pairs_.size()], random_);
  } else {
    mutate(changed, *problem_, random_);
  }
  ++trials_;
  const Outcome outcome = dispatcher.run(changed, largest_span(*problem_, current_value_ + kHopeless * heat));
  const double value = compared(outcome);
  if (value > current_value_ && !(heat > 0 && random_.uniform() < std::exp((current_value_ - value) / heat))) return;
  const bool better = value < current_value_ - kSame;
  current_ = std::move(changed);
  current_value_ = value;
  note(outcome);
  dispatcher.critical_pairs(pairs_);
  if (better && random_.uniform() < kRebaseShare) rebase(dispatcher);
}

void Climber::note(const Outcome& outcome) {
  if (compared(outcome) >= value() - kSame) return;
  best_ = current_;
  best_outcome_ = outcome;
}

/// Replaces due times by the actual start times, so that small shifts have an effect again.
void Climber::rebase(Dispatcher& dispatcher) {
  Policy exact = current_;
  exact.due = dispatcher.starts();
  ++trials_;
  const Outcome outcome = dispatcher.run(exact, largest_span(*problem_, current_value_));
  if (compared(outcome) > current_value_) return;
  current_ = std::move(exact);
  current_value_ = compared(outcome);
  note(outcome);
  dispatcher.critical_pairs(pairs_);
}

}  // namespace stagecraft::detail

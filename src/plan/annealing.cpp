#include "annealing.h"

#include <cmath>

#include "seeds.h"

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

namespace {

constexpr int kPatience = 250;  // changes without improvement before a restart
constexpr int kDraws = 30;
constexpr double kBlockHeat = 0.02;  // temperature, in units of a microbatch's work
constexpr double kNone = std::numeric_limits<double>::infinity();

}  // namespace

BlockSearch::BlockSearch(const Problem& problem, int more, std::uint64_t seed) : problem_(problem), more_(more) {
  random_.seed(seed);
}

void BlockSearch::run(Dispatcher& dispatcher, double parts, double lower_bound,
                      const std::function<bool()>& cancelled) {
  Block block;
  double value = kNone;
  int failures = 0;
  const double start = dispatcher.parts_done();  // other searches' on this thread: counted off, a sum would be rounded
  while (dispatcher.parts_done() - start < parts && best_.outcome.span > lower_bound * (1 + kSame) && !cancelled()) {
    if (value == kNone || failures > kPatience) {
      value = draw(dispatcher, block, cancelled);
      failures = 0;
      continue;
    }
    Block changed = block;
    mutate(changed, problem_, random_);
    const double heat = kBlockHeat * problem_.unit;
    const double other = value_of(dispatcher, changed, value + 8 * heat);
    failures = other < value - kSame ? 0 : failures + 1;
    if (other > value + heat * -std::log(random_.uniform())) continue;
    block = std::move(changed);
    value = other;
  }
}

/// A restart: the best of kDraws random blocks, since most random blocks are poor.
double BlockSearch::draw(Dispatcher& dispatcher, Block& block, const std::function<bool()>& cancelled) {
  double value = kNone;
  for (int i = 0; i < kDraws && !cancelled(); ++i) {
    Block other = random_block(problem_, random_);
    const double other_value = value_of(dispatcher, other, value);
    if (other_value >= value) continue;
    value = other_value;
    block = std::move(other);
  }
  return value;
}

double BlockSearch::value_of(Dispatcher& dispatcher, const Block& block, double cutoff) {
  ++trials_;
  Policy policy = policy_of(problem_, block);
  const Outcome outcome = dispatcher.run(policy, largest_span(problem_, cutoff) - more_ * problem_.unit);
  const double value = compared(outcome) + more_ * interval_of(dispatcher.starts(), problem_);
  if (value >= best_value_ - kSame) return value;
  best_ = {std::move(policy), outcome};
  best_block_ = block;
  best_value_ = value;
  return value;
}

}  // namespace stagecraft::detail

#include "block_search.h"

#include <cmath>

#include "climber.h"
#include "moves.h"
#include "seeds.h"
#include "tolerances.h"

namespace stagecraft::detail {
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
  const double end = dispatcher.parts_done() + parts;
  while (dispatcher.parts_done() < end && best_.outcome.span > lower_bound * (1 + kSame) && !cancelled()) {
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

#include "block_search.h"

#include "climber.h"
#include "moves.h"

namespace stagecraft::detail {
namespace {

constexpr int kPatience = 250;  // fruitless changes of a block before a new one is drawn
constexpr double kSame = 1e-9;
constexpr double kNone = std::numeric_limits<double>::infinity();

}  // namespace

BlockSearch::BlockSearch(const Problem& problem, std::uint64_t seed) : problem_(problem) { random_.seed(seed); }

void BlockSearch::run(Dispatcher& dispatcher, double parts, double lower_bound,
                      const std::function<bool()>& cancelled) {
  Block block;
  double value = kNone;
  int failures = 0;
  const double end = dispatcher.parts_done() + parts;
  while (dispatcher.parts_done() < end && best_.outcome.span > lower_bound * (1 + kSame) && !cancelled()) {
    if (value == kNone || failures > kPatience) {
      block = random_block(problem_, random_);
      value = value_of(dispatcher, block, kNone);
      failures = 0;
      continue;
    }
    Block changed = block;
    mutate(changed, problem_, random_);
    const double other = value_of(dispatcher, changed, value);
    failures = other < value - kSame ? 0 : failures + 1;
    if (other > value) continue;
    block = std::move(changed);
    value = other;
  }
}

double BlockSearch::value_of(Dispatcher& dispatcher, const Block& block, double cutoff) {
  ++trials_;
  Policy policy = policy_of(problem_, block);
  const Outcome outcome = dispatcher.run(policy, largest_span(problem_, cutoff));
  if (compared(outcome) < compared(best_.outcome) - kSame) { best_ = {std::move(policy), outcome}; best_block_ = block; }
  return compared(outcome);
}

}  // namespace stagecraft::detail

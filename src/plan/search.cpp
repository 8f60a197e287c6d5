#include "search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "moves.h"

namespace stagecraft::detail {
namespace {

constexpr std::size_t kIslands = 2;
constexpr int kRounds = 24;
constexpr int kStaleRounds = 10;      // without any gain end the search
constexpr double kBlockShare = 0.35;  // of the effort: the rest refines due times
constexpr int kPatience = 250;        // fruitless changes of a block before a new one is drawn
constexpr double kMeanWeight = 0.02;  // of the mean span in what a search compares: a way across plateaus
constexpr double kPairShare = 0.3;    // of refining steps that change the order of a critical pair
constexpr double kHeat = 3e-4;        // how much worse a step may be at first, in units of a microbatch's work
constexpr double kSame = 1e-9;

double compared(const Outcome& outcome) { return outcome.span + kMeanWeight * outcome.mean_span; }

/// One of the searches that run side by side.
class Island {
 public:
  Island(const Problem& problem, std::uint64_t seed, const SearchOptions& options)
      : problem_(problem), options_(options), dispatcher_(problem) {
    random_.seed(seed);
  }

  [[nodiscard]] double best_value() const { return best_value_; }
  [[nodiscard]] const Outcome& best_outcome() const { return best_outcome_; }
  [[nodiscard]] const Policy& best() const { return best_; }
  [[nodiscard]] std::int64_t trials() const { return trials_; }

  void offer(const Policy& policy) { note(policy, try_out(policy)); }

  void start_from_best() {
    if (best_value_ == kNone) return;
    current_ = best_;
    current_value_ = best_value_;
    pairs_.clear();
    if (try_out(current_).span < kNone) dispatcher_.critical_pairs(pairs_);
  }
  void adopt(const Island& other) {
    best_ = other.best_;
    best_outcome_ = other.best_outcome_;
    best_value_ = other.best_value_;
    start_from_best();
  }

  /// Hill climbing over building blocks, with restarts.
  void search_blocks(std::int64_t trials) {
    for (const std::int64_t end = trials_ + trials; trials_ < end && !is_over();) {
      if (block_failures_ > kPatience || block_value_ == kNone) {
        block_ = random_block(problem_, random_);
        block_value_ = value_of(block_);
        block_failures_ = 0;
        continue;
      }
      Block changed = block_;
      mutate(changed, problem_, random_);
      const double value = value_of(changed);
      block_failures_ = value < block_value_ - kSame ? 0 : block_failures_ + 1;
      if (value > block_value_) continue;
      block_ = std::move(changed);
      block_value_ = value;
    }
  }

  /// Hill climbing over due times; `heat` is how much worse a step may be, at odds of 1 to e.
  void refine(std::int64_t trials, double heat) {
    if (current_value_ == kNone) return;
    for (const std::int64_t end = trials_ + trials; trials_ < end && !is_over();) {
      Policy changed = current_;
      if (!pairs_.empty() && random_.uniform() < kPairShare) {
        swap_pair(changed, problem_, pairs_[random_.next() % pairs_.size()], random_);
      } else {
        mutate(changed, problem_, random_);
      }
      const Outcome outcome = try_out(changed);
      const double value = compared(outcome);
      if (value > current_value_ && !(heat > 0 && random_.uniform() < std::exp((current_value_ - value) / heat)))
        continue;
      const bool better = value < current_value_ - kSame;
      current_ = std::move(changed);
      current_value_ = value;
      note(current_, outcome);
      dispatcher_.critical_pairs(pairs_);
      if (better && random_.uniform() < 0.25) rebase();
    }
  }

 private:
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  [[nodiscard]] bool is_over() const {
    return best_outcome_.span <= options_.lower_bound * (1 + kSame) || options_.cancelled();
  }

  Outcome try_out(const Policy& policy) {
    ++trials_;
    return dispatcher_.run(policy, 1.25 * best_outcome_.span);
  }

  double value_of(const Block& block) {
    const Policy policy = policy_of(problem_, block);
    const Outcome outcome = try_out(policy);
    note(policy, outcome);
    return compared(outcome);
  }

  void note(const Policy& policy, const Outcome& outcome) {
    if (compared(outcome) >= best_value_ - kSame) return;
    best_ = policy;
    best_outcome_ = outcome;
    best_value_ = compared(outcome);
  }

  /// Due times that say what happened, so that small shifts of them mean something again.
  void rebase() {
    Policy exact = current_;
    exact.due = dispatcher_.starts();
    const Outcome outcome = try_out(exact);
    if (compared(outcome) > current_value_) return;
    current_ = std::move(exact);
    current_value_ = compared(outcome);
    note(current_, outcome);
    dispatcher_.critical_pairs(pairs_);
  }

  const Problem& problem_;
  const SearchOptions& options_;
  Dispatcher dispatcher_;
  Random random_;
  Policy best_;
  Outcome best_outcome_;
  double best_value_ = kNone;
  Policy current_;
  double current_value_ = kNone;
  std::vector<std::pair<Step, Step>> pairs_;  // critical in `current_`
  Block block_;
  double block_value_ = kNone;
  int block_failures_ = 0;
  std::int64_t trials_ = 0;
};

template <typename Work>
void on_all(std::vector<Island>& islands, int threads, const Work& work) {
  std::atomic<std::size_t> next = 0;
  const auto run = [&] {
    for (std::size_t i = next++; i < islands.size(); i = next++) work(islands[i]);
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < std::min<int>(threads, static_cast<int>(islands.size())); ++i) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
}

std::vector<Island*> by_value(std::vector<Island>& islands) {
  std::vector<Island*> order;
  for (Island& island : islands) order.push_back(&island);
  std::stable_sort(order.begin(), order.end(),
                   [](const Island* a, const Island* b) { return a->best_value() < b->best_value(); });
  return order;
}

}  // namespace

SearchResult search(const Problem& problem, const std::vector<Policy>& seeds, const SearchOptions& options) {
  std::vector<Island> islands;
  islands.reserve(kIslands);
  for (std::size_t i = 0; i < kIslands; ++i) islands.emplace_back(problem, options.seed * kIslands + i, options);
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    const bool has_one = i > 0 && by_value(islands).front()->best_outcome().span < HUGE_VAL;
    if (has_one && options.cancelled()) break;
    islands[i % kIslands].offer(seeds[i]);
  }
  for (Island& island : islands) {
    const Island& leader = *by_value(islands).front();
    if (island.best_outcome().span == HUGE_VAL && &leader != &island) island.adopt(leader);
  }

  const double parts = 3.0 * problem.stages * problem.microbatches;
  const auto per_round =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(options.effort / parts / kIslands / kRounds));
  double last_gain = HUGE_VAL;
  int stale = 0;
  for (int round = 0; round < kRounds && stale < kStaleRounds; ++round) {
    const double spent = static_cast<double>(round) / kRounds;
    if (spent < kBlockShare) {
      on_all(islands, options.threads, [&](Island& island) { island.search_blocks(per_round); });
      for (Island& island : islands) island.start_from_best();
    } else {
      const double left = (1 - spent) / (1 - kBlockShare);
      const double heat = kHeat * problem.unit * left * left;
      on_all(islands, options.threads, [&](Island& island) { island.refine(per_round, heat); });
      const std::vector<Island*> order = by_value(islands);
      if (round % 3 == 2) order.back()->adopt(*order.front());
    }
    const Island& leader = *by_value(islands).front();
    stale = leader.best_value() < last_gain - kSame || spent < kBlockShare ? 0 : stale + 1;
    last_gain = leader.best_value();
    options.progress(leader.best_outcome().span, static_cast<double>(round + 1) / kRounds);
  }
  const Island& best = *by_value(islands).front();
  SearchResult result{.outcome = best.best_outcome(), .policy = best.best()};
  for (const Island& island : islands) result.trials += island.trials();
  result.finished = !options.cancelled();
  return result;
}

}  // namespace stagecraft::detail

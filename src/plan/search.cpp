#include "search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "annealing.h"
#include "problem.h"

namespace stagecraft::detail {
namespace {

constexpr std::size_t kBlockSearches = 12;  // each gives one start
constexpr std::size_t kStartsPerFamily = 2;
constexpr std::size_t kStartsPerLeague = 8;
constexpr std::size_t kFinalists = 2;
constexpr int kFinalRounds = 3;
constexpr double kClimbHeat = 3e-4;  // initial temperature, in units of a microbatch's work

/// A parallel loop with one dispatcher per thread. The work must not depend on which thread does it.
class Workers {
 public:
  Workers(const Problem& problem, int threads) {
    for (int i = 0; i < std::max(1, threads); ++i) dispatchers_.emplace_back(problem);
  }

  /// Calls `work(dispatcher, i)` for every i below `count`, in any order and from any thread.
  template <typename Work>
  void for_each(std::size_t count, const Work& work) {
    std::atomic<std::size_t> next = 0;
    const auto run = [&](Dispatcher& dispatcher) {
      for (std::size_t i = next++; i < count; i = next++) work(dispatcher, i);
    };
    std::vector<std::thread> helpers;
    for (std::size_t i = 1; i < std::min(dispatchers_.size(), count); ++i) {
      helpers.emplace_back([&run, &dispatcher = dispatchers_[i]] { run(dispatcher); });
    }
    run(dispatchers_.front());
    for (std::thread& helper : helpers) helper.join();
  }

 private:
  std::vector<Dispatcher> dispatchers_;
};

using League = std::vector<Climber>;

class Race {
 public:
  Race(const Problem& problem, const SearchOptions& options)
      : problem_(problem), options_(options), workers_(problem, options.threads) {}

  SearchResult run(const std::vector<Family>& families) {
    std::vector<Candidate> given;
    for (const Family& family : families) enter(given, family);
    std::vector<Candidate> blocks;
    if (options_.block_share > 0 && !reached(best_span())) search_blocks(blocks);
    line_up(given);
    line_up(blocks);
    run_rounds();
    for (const League& league : leagues_) {
      for (const Climber& climber : league) {
        result_.trials += climber.trials();
        result_.best.push_back({climber.best(), climber.outcome()});
      }
    }
    std::stable_sort(result_.best.begin(), result_.best.end(),
                     [](const Candidate& a, const Candidate& b) { return a.outcome.span < b.outcome.span; });
    return std::move(result_);
  }

 private:
  [[nodiscard]] bool reached(double span) const { return span <= options_.lower_bound * (1 + kSame); }
  [[nodiscard]] bool is_over() const { return options_.cancelled() || reached(best_span()); }
  [[nodiscard]] double best_span() const {
    double span = best_start_;
    for (const League& league : leagues_) {
      if (!league.empty()) span = std::min(span, league.front().outcome().span);
    }
    return span;
  }

  /// Tries all policies of a family; the best few become starts.
  void enter(std::vector<Candidate>& starts, const Family& family) {
    std::vector<std::pair<double, std::size_t>> values(family.size, {HUGE_VAL, 0});
    std::vector<Outcome> outcomes(family.size);
    const bool first = best_start_ == HUGE_VAL;
    workers_.for_each(family.size, [&](Dispatcher& dispatcher, std::size_t i) {
      // The very first policy always runs, so that there is a result even when time is up at once.
      if (!(first && i == 0) && options_.cancelled()) return;
      outcomes[i] = dispatcher.run(family.make(i));
      values[i] = {compared(outcomes[i]), i};
    });
    result_.trials += static_cast<std::int64_t>(family.size);
    std::sort(values.begin(), values.end());
    for (std::size_t k = 0; k < std::min(kStartsPerFamily, values.size()) && values[k].first < HUGE_VAL; ++k) {
      enter(starts, {family.make(values[k].second), outcomes[values[k].second]});
    }
  }

  void enter(std::vector<Candidate>& starts, Candidate candidate) {
    if (candidate.outcome.span == HUGE_VAL) return;
    best_start_ = std::min(best_start_, candidate.outcome.span);
    starts.push_back(std::move(candidate));
  }

  static void sort(std::vector<Candidate>& candidates) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return compared(a.outcome) < compared(b.outcome); });
  }

  void search_blocks(std::vector<Candidate>& starts) {
    std::vector<BlockSearch> searches;
    for (std::size_t i = 0; i < kBlockSearches; ++i)
      searches.emplace_back(problem_, options_.more_microbatches, random_seed());
    const double parts = options_.block_share * options_.effort / kBlockSearches;
    workers_.for_each(kBlockSearches, [&](Dispatcher& dispatcher, std::size_t i) {
      searches[i].run(dispatcher, parts, options_.lower_bound, options_.cancelled);
    });
    for (const BlockSearch& found : searches) {
      result_.trials += found.trials();
      result_.blocks.push_back(found.best_block());
      enter(starts, found.best());
    }
    report(options_.block_share);
  }

  /// Makes a league of climbers from the best starts.
  void line_up(std::vector<Candidate>& starts) {
    sort(starts);
    League& league = leagues_.emplace_back();
    for (std::size_t i = 0; i < std::min(kStartsPerLeague, starts.size()); ++i) {
      league.emplace_back(problem_, std::move(starts[i].policy), starts[i].outcome, random_seed());
    }
  }

  /// Successive halving: the leagues climb in parallel, and each is halved after every round. The finalists of all
  /// leagues are united for the last rounds.
  void run_rounds() {
    int rounds = kFinalRounds;
    for (std::size_t n = kStartsPerLeague; n > kFinalists; n /= 2) ++rounds;
    const double parts = (1 - options_.block_share) * options_.effort / rounds;
    for (int round = 0; round < rounds && !is_over(); ++round) {
      climb(parts);
      for (League& league : leagues_) drop(league, std::max(kFinalists, league.size() / 2));
      if (round + 1 == rounds - kFinalRounds) unite();
      report(options_.block_share + (1 - options_.block_share) * (round + 1) / rounds);
    }
  }

  void climb(double parts) {
    std::vector<Climber*> all;
    for (League& league : leagues_) {
      for (Climber& climber : league) all.push_back(&climber);
    }
    const double each = parts / static_cast<double>(all.size());
    workers_.for_each(all.size(), [&](Dispatcher& dispatcher, std::size_t i) {
      all[i]->climb(dispatcher, each, kClimbHeat * problem_.unit,
                    [this](const Climber& climber) { return reached(climber.outcome().span) || options_.cancelled(); });
    });
    for (League& league : leagues_) sort(league);
  }

  void unite() {
    for (League& league : leagues_) {
      if (&league == &leagues_.front()) continue;
      std::move(league.begin(), league.end(), std::back_inserter(leagues_.front()));
    }
    leagues_.resize(1);
    sort(leagues_.front());
    drop(leagues_.front(), kFinalists);
  }

  void drop(League& league, std::size_t kept) {
    while (league.size() > kept) {
      result_.trials += league.back().trials();
      league.pop_back();
    }
  }

  static void sort(League& league) {
    std::stable_sort(league.begin(), league.end(),
                     [](const Climber& a, const Climber& b) { return a.value() < b.value(); });
  }

  void report(double part) {
    show_best();
    options_.progress(best_span(), part);
  }

  void show_best() {
    if (!options_.improved) return;
    const Climber* best = nullptr;
    for (const League& league : leagues_) {
      if (!league.empty() && (best == nullptr || league.front().outcome().span < best->outcome().span)) {
        best = &league.front();
      }
    }
    if (best == nullptr || best->outcome().span >= shown_span_) return;
    shown_span_ = best->outcome().span;
    options_.improved(best->best());
  }

  /// A new seed for every block search and climber.
  std::uint64_t random_seed() { return options_.seed * (kBlockSearches + 2 * kStartsPerLeague) + seeds_given_++; }

  const Problem& problem_;
  const SearchOptions& options_;
  Workers workers_;
  double best_start_ = std::numeric_limits<double>::infinity();
  double shown_span_ = std::numeric_limits<double>::infinity();  // of the last call of `improved`
  /// One league for the given starts, one for blocks. Known schedules are good from the start, blocks may become better
  /// later, so they are not compared before the final rounds. The best climber of each league comes first.
  std::vector<League> leagues_;
  std::uint64_t seeds_given_ = 0;
  SearchResult result_;
};

}  // namespace

SearchResult search(const Problem& problem, const std::vector<Family>& families, const SearchOptions& options) {
  return Race(problem, options).run(families);
}

}  // namespace stagecraft::detail

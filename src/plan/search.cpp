#include "search.h"

#include <algorithm>

#include "block_search.h"
#include "climber.h"
#include "workers.h"

namespace stagecraft::detail {
namespace {

constexpr std::size_t kBlockSearches = 8;      // each ends in a start of its own
constexpr std::size_t kStartsPerFamily = 2;
constexpr std::size_t kStarts = 16;
constexpr std::size_t kFinalists = 2;
constexpr int kFinalRounds = 4;
constexpr double kHeat = 3e-4;  // how much worse a step may be at first, in units of a microbatch's work
constexpr double kSame = 1e-9;

class Race {
 public:
  Race(const Problem& problem, const SearchOptions& options)
      : problem_(problem), options_(options), workers_(problem, options.threads) {}

  SearchResult run(const std::vector<Family>& families) {
    for (const Family& family : families) enter(tried(family), kStartsPerFamily);
    search_blocks();
    line_up();
    int rounds = kFinalRounds;
    for (std::size_t n = kStarts; n > kFinalists; n /= 2) ++rounds;
    for (int round = 0; round < rounds && !climbers_.empty() && !is_over(); ++round) {
      climb((1 - options_.block_share) * options_.effort / rounds);
      drop_the_slower_half();
      report(options_.block_share + (1 - options_.block_share) * (round + 1) / rounds);
    }
    for (const Climber& climber : climbers_) {
      result_.trials += climber.trials();
      result_.best.push_back({climber.best(), climber.outcome()});
    }
    return std::move(result_);
  }

 private:
  [[nodiscard]] bool reached(double span) const { return span <= options_.lower_bound * (1 + kSame); }
  [[nodiscard]] bool is_over() const {
    return options_.cancelled() || (!starts_.empty() && reached(best_span()));
  }
  [[nodiscard]] double best_span() const {
    return climbers_.empty() ? starts_.front().outcome.span : climbers_.front().outcome().span;
  }

  std::vector<Candidate> tried(const Family& family) {
    std::vector<Candidate> candidates(family.size());
    workers_.for_each(family.size(), [&](Dispatcher& dispatcher, std::size_t i) {
      // The first of all is what is left when time is up at once.
      if ((i > 0 || !starts_.empty()) && options_.cancelled()) return;
      candidates[i] = {family[i], dispatcher.run(family[i])};
    });
    result_.trials += static_cast<std::int64_t>(family.size());
    return candidates;
  }

  /// The best of the candidates become starts.
  void enter(std::vector<Candidate> candidates, std::size_t most) {
    std::erase_if(candidates, [](const Candidate& candidate) { return candidate.outcome.span == HUGE_VAL; });
    sort(candidates);
    for (std::size_t i = 0; i < std::min(most, candidates.size()); ++i) starts_.push_back(std::move(candidates[i]));
    sort(starts_);
  }

  static void sort(std::vector<Candidate>& candidates) {
    std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return compared(a.outcome) < compared(b.outcome);
    });
  }

  void search_blocks() {
    if (options_.block_share == 0 || is_over()) return;
    std::vector<BlockSearch> searches;
    for (std::size_t i = 0; i < kBlockSearches; ++i) searches.emplace_back(problem_, random_seed(i));
    const double parts = options_.block_share * options_.effort / kBlockSearches;
    workers_.for_each(kBlockSearches, [&](Dispatcher& dispatcher, std::size_t i) {
      searches[i].run(dispatcher, parts, options_.lower_bound, options_.cancelled);
    });
    for (BlockSearch& found : searches) {
      result_.trials += found.trials();
      enter({found.best()}, 1);
    }
    if (!starts_.empty()) report(options_.block_share);
  }

  void line_up() {
    for (std::size_t i = 0; i < std::min(kStarts, starts_.size()); ++i) {
      climbers_.emplace_back(problem_, starts_[i].policy, starts_[i].outcome, random_seed(kBlockSearches + i));
    }
  }

  void climb(double parts) {
    const double each = parts / static_cast<double>(climbers_.size());
    workers_.for_each(climbers_.size(), [&](Dispatcher& dispatcher, std::size_t i) {
      climbers_[i].climb(dispatcher, each, kHeat * problem_.unit, [this](const Climber& climber) {
        return reached(climber.outcome().span) || options_.cancelled();
      });
    });
    std::stable_sort(climbers_.begin(), climbers_.end(),
                     [](const Climber& a, const Climber& b) { return a.value() < b.value(); });
  }

  void drop_the_slower_half() {
    const std::size_t kept = std::max(kFinalists, climbers_.size() / 2);
    while (climbers_.size() > kept) {
      result_.trials += climbers_.back().trials();
      climbers_.pop_back();
    }
  }

  void report(double part) { options_.progress(best_span(), part); }

  [[nodiscard]] std::uint64_t random_seed(std::size_t i) const {
    return options_.seed * (kBlockSearches + kStarts) + i;
  }

  const Problem& problem_;
  const SearchOptions& options_;
  Workers workers_;
  std::vector<Candidate> starts_;  // the best first
  std::vector<Climber> climbers_;  // the best first
  SearchResult result_;
};

}  // namespace

SearchResult search(const Problem& problem, const std::vector<Family>& families, const SearchOptions& options) {
  return Race(problem, options).run(families);
}

}  // namespace stagecraft::detail

#pragma once

#include <functional>

#include "dispatch.h"

namespace stagecraft::detail {

struct SearchOptions {
  std::uint64_t seed = 0;
  /// Total number of parts to dispatch. Limits the search by work instead of time, so that results are reproducible.
  double effort = 2e8;
  int threads = 1;
  /// Fraction of the effort spent on building blocks.
  double block_share = 0.25;
  /// Number of microbatches that the full problem has beyond this one.
  int more_microbatches = 0;
  /// Lower bound on the span: reaching it ends the search.
  double lower_bound = 0;
  /// Called between trials, from any thread; true ends the search.
  std::function<bool()> cancelled = [] { return false; };
  /// Called between rounds, on the calling thread, with the best span so far and the fraction of the effort spent.
  std::function<void(double, double)> progress = [](double, double) {};
  /// Called before `progress` with the best policy, if it is better than at the call before; may be empty.
  std::function<void(const Policy&)> improved;
};

/// Similar policies, such as a known schedule that is followed more or less strictly. The best few of each family
/// become starts. Policies are made when they are tried, since one of a large problem takes megabytes.
struct Family {
  std::size_t size;
  std::function<Policy(std::size_t)> make;  ///< Called from any thread.
};

struct Candidate {
  Policy policy;
  Outcome outcome;
};

struct SearchResult {
  std::vector<Candidate> best;  ///< By ascending span; empty when no policy gave a schedule.
  std::vector<Block> blocks;    ///< The best block of each block search.
  std::int64_t trials = 0;
};

/// Searches for the policy with the smallest span: simulated annealing from several starts, namely the given families
/// and building blocks of its own, with successive halving of the starts. The result does not depend on the number of
/// threads.
SearchResult search(const Problem& problem, const std::vector<Family>& families, const SearchOptions& options);

}  // namespace stagecraft::detail

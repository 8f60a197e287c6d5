#pragma once

#include <functional>

#include "dispatch.h"

namespace stagecraft::detail {

struct SearchOptions {
  std::uint64_t seed = 0;
  /// Parts dispatched in all: the only measure of how long to search, so that the result does not depend on the
  /// machine.
  double effort = 2e8;
  int threads = 1;
  /// Part of the effort that goes into building blocks.
  double block_share = 0.25;
  /// The problem stands for one with so many more.
  int more_microbatches = 0;
  /// A span that cannot be improved upon: reaching it ends the search.
  double lower_bound = 0;
  /// Asked between trials, from any thread: whether to end now.
  std::function<bool()> cancelled = [] { return false; };
  /// Called between rounds, from the calling thread, with the best span so far and the part of the effort spent.
  std::function<void(double, double)> progress = [](double, double) {};
};

/// Policies that are alike: a known schedule kept more or less strictly, say. The best few of each may start. They are
/// made when they are tried: a large problem's policy has megabytes.
struct Family {
  std::size_t size;
  std::function<Policy(std::size_t)> make;  ///< Called from any thread.
};

struct Candidate {
  Policy policy;
  Outcome outcome;
};

struct SearchResult {
  std::vector<Candidate> best;  ///< The smallest span first; empty when no policy led to a schedule.
  std::vector<Block> blocks;    ///< All that were found.
  std::int64_t trials = 0;
};

/// Looks for the policy with the smallest span: a race of climbers from different starts, those given and building
/// blocks of its own. Which start is best shows only on the way, so all of them climb a little, the better half a
/// little more, and so on. The climbers do not depend on the number of threads.
SearchResult search(const Problem& problem, const std::vector<Family>& families, const SearchOptions& options);

}  // namespace stagecraft::detail

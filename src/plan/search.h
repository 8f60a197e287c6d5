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
  /// A span that cannot be improved upon: reaching it ends the search.
  double lower_bound = 0;
  /// Asked between trials, from any thread: whether to end now.
  std::function<bool()> cancelled = [] { return false; };
  /// Called between rounds, from the calling thread, with the best span so far and the part of the effort spent.
  std::function<void(double, double)> progress = [](double, double) {};
};

struct SearchResult {
  Outcome outcome;
  Policy policy;
  std::int64_t trials = 0;
  bool finished = true;  ///< Not cancelled.
};

/// Looks for the policy with the smallest span, from the given ones and from building blocks of its own. Several
/// searches, always the same number, run side by side on as many threads as there are; between rounds the weaker ones
/// take over from the best.
SearchResult search(const Problem& problem, const std::vector<Policy>& seeds, const SearchOptions& options);

}  // namespace stagecraft::detail

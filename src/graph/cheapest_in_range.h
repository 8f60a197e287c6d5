#pragma once

#include <limits>
#include <vector>

namespace stagecraft::graph {

/// A segment tree: sets a cost by index and finds the smallest in a range, both in logarithmic time.
class CheapestInRange {
 public:
  explicit CheapestInRange(int count)
      : count_(static_cast<std::size_t>(count)),
        costs_(count_, std::numeric_limits<double>::infinity()),
        best_(2 * count_, -1) {}

  void set(int index, double cost) {
    costs_[static_cast<std::size_t>(index)] = cost;
    std::size_t at = static_cast<std::size_t>(index) + count_;
    best_[at] = index;
    for (at /= 2; at >= 1; at /= 2) best_[at] = cheaper(best_[2 * at], best_[2 * at + 1]);
  }
  [[nodiscard]] double cost(int index) const { return costs_[static_cast<std::size_t>(index)]; }

  /// The index of the smallest cost set in [first, last]; -1 if there is none.
  [[nodiscard]] int cheapest(int first, int last) const {
    if (first > last || last < 0) return -1;
    int best = -1;
    std::size_t low = static_cast<std::size_t>(first < 0 ? 0 : first) + count_;
    std::size_t high = static_cast<std::size_t>(last) + 1 + count_;
    for (; low < high; low /= 2, high /= 2) {
      if (low % 2 == 1) best = cheaper(best, best_[low++]);
      if (high % 2 == 1) best = cheaper(best, best_[--high]);
    }
    return best;
  }

 private:
  [[nodiscard]] int cheaper(int a, int b) const {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    if (cost(a) != cost(b)) return cost(a) < cost(b) ? a : b;
    return a < b ? a : b;
  }

  std::size_t count_;
  std::vector<double> costs_;
  std::vector<int> best_;  // a binary tree; the second half are the leaves
};

}  // namespace stagecraft::graph

// Cuts a program into stages of about equal work.
//
//     places      |     |  |      |    |       where the program can be cut in two, from the sweep
//     nodes   ---------------------------------
//     stages  <---------><--------><---------->  each no larger than a limit, each allowed by itself
//
// The smallest limit is found by bisection. Then, with stages at most 10 % larger, the cuts that send least are chosen.
// Both use dynamic programming: one pass per stage over the places, which finds the cheapest beginning of a stage that
// ends at a place.

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis.h"
#include "stagecraft/core/error.h"
#include "stagecraft/graph/cut.h"
#include "sweep.h"

namespace stagecraft::graph {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

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

class Balancer {
 public:
  Balancer(const Program& program, int stages, const std::vector<double>& work)
      : stages_(stages), analysis_(program), sweep_(program, analysis_), places_(sweep_.places()) {
    before_.push_back(0);
    for (std::size_t i = 0; i < program.nodes.size(); ++i) {
      before_.push_back(before_.back() + (work.empty() ? work_of(program, program.nodes[i]) : work[i]));
    }
    for (int i = 0; i < count(); ++i) {
      const int first_taken = sweep_.lifetimes().first_taken(node(i));
      open_from_.push_back(first_taken > sweep_.lifetimes().end() ? count() + 1 : index_after(first_taken));
      const int last_left = sweep_.lifetimes().last_left(node(i));
      last_begin_.push_back(index_after(last_left) - 1);
      first_may_end_.push_back(last_left > -2);
      opening_order_.push_back(i);
    }
    std::stable_sort(opening_order_.begin(), opening_order_.end(),
                     [&](int a, int b) { return open_from_[index(a)] < open_from_[index(b)]; });
  }

  /// The nodes to cut before; empty when there is no legal division.
  std::vector<int> run() {
    const std::vector<double> nothing(index(count() + 1), 0);
    std::vector<int> best = divide(kNever, nothing);
    if (best.empty()) return {};
    const double smallest = least_limit(before_.back() / stages_, best, nothing, 0);
    std::vector<double> sent = nothing;
    for (int i = 0; i < count(); ++i) sent[index(i)] = static_cast<double>(places_[index(i)].bytes);
    constexpr double kTolerance = 1.1;
    best = divide(kTolerance * smallest, sent);
    // Among cuts that send equally little, take the one whose largest stage is smallest.
    least_limit(smallest, best, sent, cost_of(best, sent));
    std::vector<int> result;
    for (const int place : best) result.push_back(node(place));
    return result;
  }

  [[nodiscard]] int count() const { return static_cast<int>(places_.size()); }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] int node(int place) const { return places_[index(place)].node; }
  /// Index of the first place after a position.
  [[nodiscard]] int index_after(int position) const {
    return static_cast<int>(std::upper_bound(places_.begin(), places_.end(), position,
                                             [](int p, const Sweep::Place& place) { return p < place.node; }) -
                            places_.begin());
  }
  /// Work of all nodes before a cut position; position `count` is the end of the program.
  [[nodiscard]] double work_before(int place) const {
    return place == count() ? before_.back() : before_[index(node(place))];
  }

  [[nodiscard]] double largest(const std::vector<int>& cuts) const {
    double most = 0;
    double last = 0;
    for (const int place : cuts) {
      most = std::max(most, work_before(place) - last);
      last = work_before(place);
    }
    return std::max(most, before_.back() - last);
  }

  static double cost_of(const std::vector<int>& cuts, const std::vector<double>& cost) {
    double total = 0;
    for (const int place : cuts) total += cost[index(place)];
    return total;
  }

  /// Bisects for the smallest limit with cuts that cost at most `most_cost`. `best` must be such cuts; it becomes the
  /// cuts with the smallest limit.
  double least_limit(double too_small, std::vector<int>& best, const std::vector<double>& cost,
                     double most_cost) const {
    double limit = largest(best);
    too_small *= 1 - 1e-9;
    while (limit - too_small > 1e-9 * limit) {
      const double tried = too_small + (limit - too_small) / 2;
      std::vector<int> found = divide(tried, cost);
      if (found.empty() || cost_of(found, cost) > most_cost) {
        too_small = tried;
      } else {
        best = std::move(found);
        limit = std::min(tried, largest(best));
      }
    }
    return limit;
  }

  /// The cheapest places, ascending, for stages with at most `limit` work; empty if there are none.
  [[nodiscard]] std::vector<int> divide(double limit, const std::vector<double>& cost) const {
    const double most = limit * (1 + 1e-12);
    std::vector<std::vector<int>> begins;  // by stage and end
    std::vector<double> reached(index(count() + 1), kNever);
    for (int to = 0; to < count(); ++to) {
      if (work_before(to) <= most && first_may_end_[index(to)]) reached[index(to)] = cost[index(to)];
    }
    for (int stage = 1; stage < stages_; ++stage) {
      std::vector<double> next(reached.size(), kNever);
      std::vector<int>& own = begins.emplace_back(reached.size(), -1);
      CheapestInRange open(count());
      std::size_t opened = 0;
      const bool is_last = stage + 1 == stages_;
      int low = 0;
      for (int to = is_last ? count() : 0; to <= (is_last ? count() : count() - 1); ++to) {
        for (; opened < opening_order_.size() && open_from_[index(opening_order_[opened])] <= to; ++opened) {
          const int from = opening_order_[opened];
          if (reached[index(from)] < kNever) open.set(from, reached[index(from)]);
        }
        while (low < count() && work_before(to) - work_before(low) > most) ++low;
        const int high = to == count() ? count() - 1 : std::min(to - 1, last_begin_[index(to)]);
        const int from = cheapest(open, low, high, to);
        if (from < 0) continue;
        next[index(to)] = reached[index(from)] + cost[index(to)];
        own[index(to)] = from;
      }
      reached = std::move(next);
    }
    if (!(reached.back() < kNever)) return {};
    std::vector<int> cuts;
    int at = count();
    for (std::size_t stage = begins.size(); stage-- > 0;) {
      at = begins[stage][index(at)];
      cuts.push_back(at);
    }
    std::reverse(cuts.begin(), cuts.end());
    return cuts;
  }

  /// The cheapest beginning in [low, high] of a stage that ends at `to`, except those that memory sharing forbids; -1
  /// if there is none.
  [[nodiscard]] int cheapest(const CheapestInRange& open, int low, int high, int to) const {
    const int end = to == count() ? sweep_.lifetimes().end() + 1 : node(to);
    std::vector<std::pair<int, int>> holes;
    for (const Sweep::Forbidden& rule : sweep_.forbidden()) {
      if (end <= rule.change || end > rule.end_until) continue;
      holes.emplace_back(index_after(rule.after), index_after(rule.begin_until) - 1);
    }
    std::sort(holes.begin(), holes.end());
    holes.emplace_back(high + 1, high + 1);
    int best = -1;
    for (const auto& [first, last] : holes) {
      const int found = open.cheapest(low, std::min(high, first - 1));
      if (found >= 0 && (best < 0 || open.cost(found) < open.cost(best))) best = found;
      low = std::max(low, last + 1);
    }
    return best;
  }

  int stages_;
  Analysis analysis_;
  Sweep sweep_;
  const std::vector<Sweep::Place>& places_;
  std::vector<double> before_;       // by node: work of all nodes before it
  std::vector<int> open_from_;       // by place: first end of a stage that begins there and receives a value
  std::vector<int> opening_order_;   // places sorted by open_from_
  std::vector<int> last_begin_;      // by place: last beginning of a stage that ends there and sends a value
  std::vector<bool> first_may_end_;  // by place: whether the first stage may end there
};

}  // namespace

std::vector<int> balanced_places(const Program& program, int stages, const std::vector<double>& work) {
  if (stages < 1) throw InvalidArgument("a model is cut into at least 1 stage, not " + std::to_string(stages));
  if (!work.empty() && work.size() != program.nodes.size()) {
    throw InvalidArgument("work is given for " + std::to_string(work.size()) + " nodes, but there are " +
                          std::to_string(program.nodes.size()));
  }
  if (std::any_of(work.begin(), work.end(), [](double one) { return !(one >= 0) || std::isinf(one); })) {
    throw InvalidArgument("the work of a node must be finite and not negative");
  }
  if (stages == 1) return {};
  Balancer balancer(program, stages, work);
  std::vector<int> places;
  if (balancer.count() >= stages - 1) places = balancer.run();
  if (places.empty()) {
    throw InvalidArgument("the model can be cut in " + std::to_string(balancer.count()) + " places, too few for " +
                          std::to_string(stages) + " stages: ask for fewer" + ways_to_more_places(program));
  }
  return places;
}

}  // namespace stagecraft::graph

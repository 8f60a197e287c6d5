#pragma once

#include <unordered_map>
#include <vector>

#include "analysis.h"
#include "lifetimes.h"

namespace stagecraft::graph {

/// Where a program can be cut in two, and what crosses there: for all places in one sweep over the nodes, with the
/// rules of Cutter.
class Sweep {
 public:
  Sweep(const Program& program, const Analysis& analysis);

  struct Place {
    int node = 0;  ///< Before which it is cut.
    std::int64_t bytes = 0;
  };
  /// Ascending; always before a node that belongs to one stage.
  [[nodiscard]] const std::vector<Place>& places() const { return places_; }
  [[nodiscard]] const Lifetimes& lifetimes() const { return lifetimes_; }

  /// A stage that begins after `after` and not after `begin_until`, and ends after `change` and not after `end_until`,
  /// would change memory whose old content a later stage uses.
  struct Forbidden {
    int after = 0;
    int begin_until = 0;
    int change = 0;
    int end_until = 0;
  };
  [[nodiscard]] const std::vector<Forbidden>& forbidden() const { return forbidden_; }

 private:
  void forbid(int from, int to);
  void check_sharing(const Analysis::Changed& group);
  void find_wanted_numbers();
  void sweep();
  void turn(ValueId value, bool live);
  [[nodiscard]] int numbers_sent(int place);
  /// In every stage that wants it.
  [[nodiscard]] bool is_anywhere(ValueId tensor) const { return !lifetimes_.may_cross(tensor); }
  [[nodiscard]] bool can_be_read(int place, const Node& node) const;
  [[nodiscard]] bool can_be_read_off(ValueId number) const;
  [[nodiscard]] const ValueInfo& info(ValueId value) const { return program_.values[static_cast<std::size_t>(value)]; }

  const Program& program_;
  const Analysis& analysis_;
  Lifetimes lifetimes_;
  std::vector<int> illegal_;  // differences by place
  std::vector<Forbidden> forbidden_;
  std::vector<std::pair<int, ValueId>> wanted_;  // numbers by the last position that wants them, the last first
  std::vector<Place> places_;

  // At the place that the sweep has reached:
  std::unordered_map<std::string, int> live_sizes_;
  std::uint64_t live_bytes_ = 0;  // modulo 2^64, if a file claims that much
  int live_values_ = 0;
  std::size_t wanted_here_ = 0;  // so many of `wanted_`
  std::vector<int> looked_at_;   // by value: the place where it was
  std::vector<ValueId> open_;
};

}  // namespace stagecraft::graph

#pragma once

#include <unordered_map>
#include <vector>

#include "analysis.h"

namespace stagecraft::graph {

/// Finds all places where a program can be cut in two, and the bytes that cross there, in one sweep over the nodes.
/// Uses the rules of Cutter.
class Sweep {
 public:
  Sweep(const Program& program, const Analysis& analysis);

  struct Place {
    int node = 0;  ///< The cut is before this node.
    std::int64_t bytes = 0;
  };
  /// Ascending; always before an owned node.
  [[nodiscard]] const std::vector<Place>& places() const { return places_; }
  [[nodiscard]] const Lifetimes& lifetimes() const { return lifetimes_; }

  /// A stage that begins in (after, begin_until] and ends in (change, end_until] would change memory whose old contents
  /// a later stage uses.
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
  /// Whether every stage can have the tensor without receiving it.
  [[nodiscard]] bool is_anywhere(ValueId tensor) const { return !lifetimes_.may_cross(tensor); }
  [[nodiscard]] bool can_be_read(int place, const Node& node) const;
  [[nodiscard]] bool can_be_read_off(ValueId number) const;
  [[nodiscard]] const ValueInfo& info(ValueId value) const { return program_.values[static_cast<std::size_t>(value)]; }

  const Program& program_;
  const Analysis& analysis_;
  Lifetimes lifetimes_;
  std::vector<int> illegal_;  // difference array by place: > 0 in the running sum means forbidden
  std::vector<Forbidden> forbidden_;
  std::vector<std::pair<int, ValueId>> wanted_;  // (last position that uses it, number), descending
  std::vector<Place> places_;

  // State at the current place of the sweep:
  std::unordered_map<std::string, int> live_sizes_;
  std::uint64_t live_bytes_ = 0;  // modulo 2^64: a file may claim huge sizes
  int live_values_ = 0;
  std::size_t wanted_here_ = 0;  // how many entries of `wanted_` are used after this place
  std::vector<int> looked_at_;   // by value: the last place where it was visited
  std::vector<ValueId> open_;
};

}  // namespace stagecraft::graph

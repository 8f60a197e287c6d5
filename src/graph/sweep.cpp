#include "sweep.h"

#include <algorithm>
#include <limits>

namespace stagecraft::graph {

Sweep::Sweep(const Program& program, const Analysis& analysis)
    : program_(program),
      analysis_(analysis),
      lifetimes_(program, analysis),
      illegal_(program.nodes.size() + 2, 0),
      looked_at_(program.values.size(), -1) {
  for (const Analysis::Changed& group : analysis_.changed()) check_sharing(group);
  find_wanted_numbers();
  sweep();
}

/// Forbids cuts before the nodes in [from, to].
void Sweep::forbid(int from, int to) {
  from = std::max(from, 0);
  if (from > to) return;
  ++illegal_[static_cast<std::size_t>(from)];
  --illegal_[static_cast<std::size_t>(to) + 1];
}

void Sweep::check_sharing(const Analysis::Changed& group) {
  int first = lifetimes_.end();  // range that must not be cut: changes, and uses of weights that are changed
  int last = -1;
  const auto add = [&](int position) {
    first = std::min(first, position);
    last = std::max(last, position);
  };
  for (const int node : group.nodes) add(node);
  for (const int update : group.updates) {
    add(analysis_.maker(program_.updates[static_cast<std::size_t>(update)].value));
  }
  const int first_change = first;
  const int last_change = last;
  std::vector<std::pair<int, int>> events;  // begin (+1), end (-1) of values that cross places up to the first change
  for (const ValueId value : group.values) {
    const int made = lifetimes_.made(value);
    const int used = lifetimes_.last_use(value);
    if (used < 0) continue;
    if (!lifetimes_.may_cross(value)) {
      add(lifetimes_.first_use(value));
      add(used);
      continue;
    }
    if (made >= first_change) continue;
    events.emplace_back(made + 1, 1);
    events.emplace_back(std::min(used, first_change) + 1, -1);
    if (used > last_change) forbidden_.push_back({made, first_change, last_change, used});
  }
  forbid(first + 1, last);
  // A stage must not receive two values that share the memory.
  std::sort(events.begin(), events.end());
  int live = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    live += events[i].second;
    if (live > 1 && i + 1 < events.size()) forbid(events[i].first, events[i + 1].first - 1);
  }
}

/// Finds the numbers that nodes use directly, or through constants that every stage makes itself.
void Sweep::find_wanted_numbers() {
  std::vector<int> wanted(program_.values.size(), -1);
  const auto want = [&](ValueId value, int position) {
    int& own = wanted[static_cast<std::size_t>(value)];
    own = std::max(own, position);
  };
  for (const ValueId value : program_.output_values()) want(value, lifetimes_.end());
  for (const Update& update : program_.updates) want(update.value, analysis_.maker(update.value));
  for (int i = lifetimes_.end() - 1; i >= 0; --i) {
    const Node& node = program_.nodes[static_cast<std::size_t>(i)];
    const std::vector<ValueId> used = node.uses();
    int position = i;
    if (!analysis_.is_owned(i)) {
      // Sizes of constants are always read. Whether other numbers are computed or received depends on the place.
      const bool of_constants =
          reads_size(node) && std::all_of(used.begin(), used.end(), [&](ValueId v) { return is_anywhere(v); });
      if (analysis_.origin(node.makes().front()) == Analysis::Origin::kSize && !of_constants) continue;
      position = -1;
      for (const ValueId made : node.makes()) position = std::max(position, wanted[static_cast<std::size_t>(made)]);
    }
    if (position < 0) continue;
    for (const ValueId value : used) want(value, position);
  }
  for (std::size_t v = 0; v < wanted.size(); ++v) {
    const auto value = static_cast<ValueId>(v);
    if (wanted[v] >= 0 && analysis_.origin(value) == Analysis::Origin::kSize) wanted_.emplace_back(wanted[v], value);
  }
  std::sort(wanted_.rbegin(), wanted_.rend());
}

/// Visits the places from last to first and keeps track of the values that cross.
void Sweep::sweep() {
  const int end = lifetimes_.end();
  std::vector<std::vector<ValueId>> used_last(static_cast<std::size_t>(end) + 1);
  std::vector<std::vector<ValueId>> made(static_cast<std::size_t>(end) + 1);
  for (std::size_t v = 0; v < program_.values.size(); ++v) {
    const auto value = static_cast<ValueId>(v);
    if (!lifetimes_.may_cross(value) || lifetimes_.last_use(value) < 0) continue;
    used_last[static_cast<std::size_t>(lifetimes_.last_use(value))].push_back(value);
    if (lifetimes_.made(value) >= 0) made[static_cast<std::size_t>(lifetimes_.made(value))].push_back(value);
  }
  std::vector<bool> legal(static_cast<std::size_t>(end) + 1, true);
  int against = 0;
  int owned_before = 0;
  for (int place = 0; place < end; ++place) {
    against += illegal_[static_cast<std::size_t>(place)];
    legal[static_cast<std::size_t>(place)] = against == 0 && owned_before > 0 && analysis_.is_owned(place);
    owned_before += analysis_.is_owned(place) ? 1 : 0;
  }
  for (int place = end; place > 0; --place) {
    // Values made by the node at `place` do not cross the cut before it.
    for (const ValueId value : used_last[static_cast<std::size_t>(place)]) turn(value, true);
    for (const ValueId value : made[static_cast<std::size_t>(place)]) turn(value, false);
    while (wanted_here_ < wanted_.size() && wanted_[wanted_here_].first >= place) ++wanted_here_;
    if (place == end || !legal[static_cast<std::size_t>(place)]) continue;
    const int numbers = numbers_sent(place);
    if (live_values_ + numbers == 0) continue;
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    const auto tensors = static_cast<std::int64_t>(std::min(live_bytes_, kMost));
    places_.push_back({place, capped_sum(tensors, std::int64_t{8} * numbers)});
  }
  std::reverse(places_.begin(), places_.end());
}

void Sweep::turn(ValueId value, bool live) {
  const ValueInfo& own = info(value);
  live_values_ += live ? 1 : -1;
  const auto bytes = static_cast<std::uint64_t>(own.is_tensor() ? own.tensor.bytes() : 8);
  live_bytes_ += live ? bytes : 0 - bytes;
  for (const Size& size : own.tensor.sizes) {
    if (!size.fixed()) live_sizes_[size.expression] += live ? 1 : -1;
  }
}

bool Sweep::can_be_read(int place, const Node& node) const {
  const std::vector<ValueId> used = node.uses();
  return std::all_of(used.begin(), used.end(), [&](ValueId tensor) {
    return is_anywhere(tensor) || lifetimes_.made(tensor) >= place || lifetimes_.crosses(tensor, place);
  });
}

bool Sweep::can_be_read_off(ValueId number) const {
  const std::string& expression = info(number).number.expression;
  if (expression.empty()) return false;
  const auto found = live_sizes_.find(expression);
  return found != live_sizes_.end() && found->second > 0;
}

/// How many numbers the part after the cut must receive because it cannot take them from the shape of a tensor it has.
int Sweep::numbers_sent(int place) {
  int sent = 0;
  const auto look_at = [&](ValueId number) {
    if (analysis_.origin(number) != Analysis::Origin::kSize) return;
    int& own = looked_at_[static_cast<std::size_t>(number)];
    if (own != place) open_.push_back(number);
    own = place;
  };
  for (std::size_t i = 0; i < wanted_here_; ++i) look_at(wanted_[i].second);
  while (!open_.empty()) {
    const ValueId number = open_.back();
    open_.pop_back();
    const Node& node = program_.nodes[static_cast<std::size_t>(analysis_.maker(number))];
    if (reads_size(node)) {
      if (!can_be_read(place, node) && !can_be_read_off(number)) ++sent;
    } else if (!can_be_read_off(number)) {
      for (const ValueId used : node.uses()) look_at(used);
    }
  }
  return sent;
}

}  // namespace stagecraft::graph

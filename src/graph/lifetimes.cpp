#include "lifetimes.h"

#include <algorithm>

namespace stagecraft::graph {

Lifetimes::Lifetimes(const Program& program, const Analysis& analysis)
    : end_(static_cast<int>(program.nodes.size())),
      made_(program.values.size(), -1),
      first_use_(program.values.size(), end_ + 1),
      last_use_(program.values.size(), -2),
      may_cross_(program.values.size(), false),
      earliest_(program.nodes.size() + 1, end_),
      latest_(program.nodes.size() + 1, -2) {
  for (std::size_t v = 0; v < may_cross_.size(); ++v) {
    const auto value = static_cast<ValueId>(v);
    made_[v] = analysis.maker(value);
    const int input = analysis.input(value);
    may_cross_[v] = made_[v] >= 0 ? analysis.is_owned(made_[v])
                                  : input < 0 || !program.inputs[static_cast<std::size_t>(input)].is_loaded();
  }
  for (int i = 0; i < end_; ++i) {
    if (!analysis.is_owned(i)) continue;
    for (const ValueId value : program.nodes[static_cast<std::size_t>(i)].uses()) use(value, i);
  }
  for (const ValueId value : program.output_values()) use(value, end_);
}

void Lifetimes::use(ValueId value, int position) {
  int& first = first_use_[static_cast<std::size_t>(value)];
  first = std::min(first, position);
  int& last = last_use_[static_cast<std::size_t>(value)];
  last = std::max(last, position);
  if (!may_cross(value)) return;
  int& earliest = earliest_[static_cast<std::size_t>(position)];
  earliest = std::min(earliest, made(value));
  int& latest = latest_[static_cast<std::size_t>(made(value) + 1)];
  latest = std::max(latest, position);
}

int Lifetimes::first_taken(int from) const {
  int position = from;
  while (position <= end_ && earliest_[static_cast<std::size_t>(position)] >= from) ++position;
  return position;
}

int Lifetimes::last_left(int to) const {
  int position = to - 1;
  while (position >= -1 && latest_[static_cast<std::size_t>(position + 1)] < to) --position;
  return position >= -1 ? position : -2;
}

}  // namespace stagecraft::graph

#include "analysis.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace stagecraft::graph {
namespace {

/// Union-find over values.
class Groups {
 public:
  explicit Groups(std::size_t count) : parents_(count) { std::iota(parents_.begin(), parents_.end(), 0); }
  int find(int value) {
    while (parents_[static_cast<std::size_t>(value)] != value) {
      int& parent = parents_[static_cast<std::size_t>(value)];
      parent = parents_[static_cast<std::size_t>(parent)];
      value = parent;
    }
    return value;
  }
  void join(int a, int b) { parents_[static_cast<std::size_t>(find(a))] = find(b); }

 private:
  std::vector<int> parents_;
};

}  // namespace

Analysis::Analysis(const Program& program)
    : origins_(program.values.size(), Origin::kData),
      makers_(program.values.size(), -1),
      inputs_(program.values.size(), -1),
      owned_(program.nodes.size(), true),
      is_changed_(program.values.size(), false) {
  std::vector<Effects> effects;
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    effects.push_back(effects_of(program.nodes[i]));
    for (const ValueId value : program.nodes[i].makes()) makers_[static_cast<std::size_t>(value)] = static_cast<int>(i);
  }
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    if (program.inputs[i].value != kNoValue) {
      inputs_[static_cast<std::size_t>(program.inputs[i].value)] = static_cast<int>(i);
    }
  }
  find_changed(program, effects);
  find_origins(program, effects);
}

void Analysis::find_changed(const Program& program, const std::vector<Effects>& effects) {
  Groups groups(program.values.size());
  const auto is_tensor = [&](ValueId value) { return program.values[static_cast<std::size_t>(value)].is_tensor(); };
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    // All results and arguments that may share memory form one group.
    int first = -1;
    const auto join = [&](ValueId value) {
      if (!is_tensor(value)) return;
      if (first >= 0) groups.join(value, first);
      first = value;
    };
    if (effects[i].shares.empty()) continue;
    for (const ValueId value : program.nodes[i].makes()) join(value);
    if (first < 0) continue;
    for (const ValueId shared : effects[i].shares) join(shared);
  }
  std::map<int, Changed> by_root;
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    for (const ValueId value : effects[i].changes) {
      if (is_tensor(value)) by_root[groups.find(value)].nodes.push_back(static_cast<int>(i));
    }
  }
  for (std::size_t u = 0; u < program.updates.size(); ++u) {
    const Input& buffer = program.inputs[static_cast<std::size_t>(program.updates[u].input)];
    by_root[groups.find(buffer.value)].updates.push_back(static_cast<int>(u));
  }
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    const auto found = by_root.find(groups.find(static_cast<int>(v)));
    if (found == by_root.end()) continue;
    found->second.values.push_back(static_cast<ValueId>(v));
    is_changed_[v] = true;
  }
  for (auto& [root, group] : by_root) changed_.push_back(std::move(group));
}

void Analysis::find_origins(const Program& program, const std::vector<Effects>& effects) {
  for (const Input& input : program.inputs) {
    if (input.value == kNoValue || is_changed_[static_cast<std::size_t>(input.value)]) continue;
    if (input.kind == Input::Kind::kBuffer || input.kind == Input::Kind::kConstant) {
      origins_[static_cast<std::size_t>(input.value)] = Origin::kConstant;
    }
  }
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    const std::vector<ValueId> made = node.makes();
    bool from_data = made.empty() || effects[i].random || !effects[i].changes.empty();
    const std::vector<ValueId> used = node.uses();
    const bool reads_one =
        reads_size(node) && used.size() == 1 && program.values[static_cast<std::size_t>(used.front())].is_tensor();
    if (!reads_one) {
      for (const ValueId value : used) from_data |= origin(value) == Origin::kData;
    }
    for (const ValueId value : made) {
      from_data |= is_changed_[static_cast<std::size_t>(value)];
      // A number taken from the elements of a tensor is data: other stages cannot get it from a shape.
      from_data |=
          !program.values[static_cast<std::size_t>(value)].is_tensor() && !reads_size(node) && !computes_number(node);
    }
    if (from_data) continue;
    owned_[i] = false;
    for (const ValueId value : made) {
      origins_[static_cast<std::size_t>(value)] =
          program.values[static_cast<std::size_t>(value)].is_tensor() ? Origin::kConstant : Origin::kSize;
    }
  }
}

std::vector<bool> changed_values(const Program& program) { return Analysis(program).is_changed(); }

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

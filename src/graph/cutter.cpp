#include "cutter.h"

#include <algorithm>

#include "stagecraft/core/error.h"

namespace stagecraft::graph {

Cutter::Cutter(const Program& program, const Analysis& analysis, std::vector<int> places)
    : program_(program),
      analysis_(analysis),
      places_(std::move(places)),
      stages_(static_cast<int>(places_.size()) + 1),
      stage_of_node_(program.nodes.size()),
      needs_(static_cast<std::size_t>(stages_)),
      copies_(static_cast<std::size_t>(stages_)),
      updates_(static_cast<std::size_t>(stages_)) {}

CutProgram Cutter::run() {
  check_places();
  place_nodes();
  close_over_tensors();
  find_numbers();
  attach_updates();
  attach_unused();
  check_connected();
  check_sharing();
  return assemble();
}

std::string Cutter::describe_value(ValueId value) const {
  const int maker = analysis_.maker(value);
  return maker >= 0 ? describe(maker) : "the input '" + info(value).name + "'";
}

void Cutter::check_places() const {
  const auto nodes = static_cast<int>(program_.nodes.size());
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i] < 0 || places_[i] > nodes) {
      throw InvalidArgument("a cut before node " + std::to_string(places_[i]) +
                            " is asked for, but there are only nodes 0 to " + std::to_string(nodes - 1));
    }
    if (i > 0 && places_[i] < places_[i - 1]) throw InvalidArgument("cuts must be in the order of the program");
  }
}

void Cutter::place_nodes() {
  std::vector<bool> has_work(static_cast<std::size_t>(stages_), false);
  for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
    const auto place = std::upper_bound(places_.begin(), places_.end(), static_cast<int>(i));
    const auto stage = static_cast<int>(place - places_.begin());
    stage_of_node_[i] = stage;
    if (!analysis_.is_owned(static_cast<int>(i))) continue;
    needs(stage).nodes.insert(static_cast<int>(i));
    has_work[static_cast<std::size_t>(stage)] = true;
  }
  if (stages_ == 1) return;
  const auto around = [&](int place) {
    return place < static_cast<int>(program_.nodes.size()) ? "before " + describe(place) : std::string("at the end");
  };
  for (int stage = 0; stage < stages_; ++stage) {
    if (has_work[static_cast<std::size_t>(stage)]) continue;
    std::string where = stage == 0             ? "the cut " + around(places_.front()) + " leaves nothing before it"
                        : stage + 1 == stages_ ? "the cut " + around(places_.back()) + " leaves nothing after it"
                                               : "there is nothing to compute between the cut " +
                                                     around(places_[static_cast<std::size_t>(stage) - 1]) +
                                                     " and the cut " + around(places_[static_cast<std::size_t>(stage)]);
    throw InvalidArgument("stage " + std::to_string(stage) + " would be empty: " + where + "; leave out one cut");
  }
}

int Cutter::home(ValueId value) const {
  int maker = analysis_.maker(value);
  while (maker >= 0 && !analysis_.is_owned(maker) && reads_size(program_.nodes[static_cast<std::size_t>(maker)])) {
    const std::vector<ValueId> used = program_.nodes[static_cast<std::size_t>(maker)].uses();
    if (used.empty()) break;
    maker = analysis_.maker(used.front());
  }
  return maker < 0 ? 0 : stage_of(maker);
}

void Cutter::need(int stage, ValueId value) {
  std::vector<ValueId> open{value};
  while (!open.empty()) {
    const ValueId next = open.back();
    open.pop_back();
    if (next != kNoValue) need_one(stage, next, open);
  }
}

void Cutter::need_one(int stage, ValueId value, std::vector<ValueId>& open) {
  const int maker = analysis_.maker(value);
  Needs& own = needs(stage);
  if (maker < 0) {
    const int input = analysis_.input(value);
    if (input >= 0 && program_.inputs[static_cast<std::size_t>(input)].is_loaded()) {
      own.loaded.insert(input);
    } else if (stage > 0) {
      own.received.insert(value);
    }
    return;
  }
  if (analysis_.origin(value) == Analysis::Origin::kSize) {
    if (own.numbers.insert(value).second) own.open_numbers.push_back(value);
    return;
  }
  if (!analysis_.is_owned(maker)) {
    if (!own.nodes.insert(maker).second) return;
    const std::vector<ValueId> used = program_.nodes[static_cast<std::size_t>(maker)].uses();
    open.insert(open.end(), used.begin(), used.end());
    return;
  }
  if (stage_of(maker) < stage) own.received.insert(value);
}

void Cutter::close_over_tensors() {
  for (int stage = 0; stage < stages_; ++stage) {
    const std::vector<int> owned(needs(stage).nodes.begin(), needs(stage).nodes.end());
    for (const int node : owned) {
      for (const ValueId used : program_.nodes[static_cast<std::size_t>(node)].uses()) need(stage, used);
    }
  }
  for (const ValueId value : program_.output_values()) need(stages_ - 1, value);
  for (const Update& update : program_.updates) {
    const int stage = home(update.value);
    need(stage, update.value);
    needs(stage).loaded.insert(update.input);
  }
}

/// Goes from the last stage to the first, since a stage may need a number from an earlier one.
void Cutter::find_numbers() {
  for (int stage = stages_ - 1; stage >= 0; --stage) {
    std::vector<ValueId>& open = needs(stage).open_numbers;
    while (!open.empty()) {
      const ValueId number = open.back();
      open.pop_back();
      find_number(stage, number);
    }
  }
}

bool Cutter::has_tensor(int stage, ValueId tensor) const {
  if (needs(stage).received.contains(tensor)) return true;
  const int maker = analysis_.maker(tensor);
  if (maker >= 0) return needs(stage).nodes.contains(maker) || !analysis_.is_owned(maker);
  const int input = analysis_.input(tensor);
  return stage == 0 || (input >= 0 && program_.inputs[static_cast<std::size_t>(input)].is_loaded());
}

bool Cutter::read_off(int stage, ValueId number) {
  const std::string& expression = info(number).number.expression;
  if (expression.empty()) return false;
  for (const ValueId tensor : needs(stage).received) {
    const std::vector<Size>& sizes = info(tensor).tensor.sizes;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d].expression != expression) continue;
      needs(stage).sizes[number] = {number, tensor, static_cast<int>(d)};
      return true;
    }
  }
  return false;
}

void Cutter::find_number(int stage, ValueId number) {
  Needs& own = needs(stage);
  const int maker = analysis_.maker(number);
  if (own.nodes.contains(maker)) return;
  const Node& node = program_.nodes[static_cast<std::size_t>(maker)];
  const std::vector<ValueId> used = node.uses();
  const bool reads = reads_size(node);
  const bool computable =
      !reads || std::all_of(used.begin(), used.end(), [&](ValueId tensor) { return has_tensor(stage, tensor); });
  if (!(reads && computable) && read_off(stage, number)) return;
  if (computable) {
    own.nodes.insert(maker);
    for (const ValueId other : used) need(stage, other);
    return;
  }
  own.received.insert(number);
  need(home(number), number);
}

void Cutter::attach_updates() {
  for (const Update& update : program_.updates)
    updates_[static_cast<std::size_t>(home(update.value))].push_back(update);
}

/// Assigns weights that no node uses, which still belong to the model, to the stage whose weights have the most similar
/// names.
void Cutter::attach_unused() {
  const auto shared_prefix = [](const std::string& a, const std::string& b) {
    std::size_t dots = 0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()) && a[i] == b[i]; ++i) dots += a[i] == '.' ? 1 : 0;
    return dots;
  };
  std::set<int> used;
  for (const Needs& own : needs_) used.insert(own.loaded.begin(), own.loaded.end());
  for (std::size_t i = 0; i < program_.inputs.size(); ++i) {
    const Input& input = program_.inputs[i];
    if (!input.is_loaded() || input.kind == Input::Kind::kConstant || used.contains(static_cast<int>(i))) continue;
    int best = 0;
    std::size_t closest = 0;
    for (int stage = 0; stage < stages_; ++stage) {
      for (const int other : needs(stage).loaded) {
        if (!used.contains(other)) continue;
        const std::size_t shared = shared_prefix(input.name, program_.inputs[static_cast<std::size_t>(other)].name);
        if (shared <= closest) continue;
        closest = shared;
        best = stage;
      }
    }
    needs(best).loaded.insert(static_cast<int>(i));
  }
}

void Cutter::check_connected() const {
  std::vector<bool> sends(static_cast<std::size_t>(stages_), false);
  for (int stage = 1; stage < stages_; ++stage) {
    for (const ValueId value : needs(stage).received) sends[static_cast<std::size_t>(home(value))] = true;
    if (needs(stage).received.empty()) {
      throw InvalidArgument("stage " + std::to_string(stage) + ", from " +
                            describe(places_[static_cast<std::size_t>(stage) - 1]) +
                            ", would take nothing from the stages before it: cut elsewhere");
    }
  }
  for (int stage = 0; stage + 1 < stages_; ++stage) {
    if (sends[static_cast<std::size_t>(stage)]) continue;
    throw InvalidArgument("nothing after stage " + std::to_string(stage) + ", which ends before " +
                          describe(places_[static_cast<std::size_t>(stage)]) +
                          ", would use what it makes: cut elsewhere");
  }
}

/// A message is a copy, so memory that several values share must not be changed on one side of a cut and read on the
/// other.
void Cutter::check_sharing() {
  for (const Analysis::Changed& group : analysis_.changed()) check_sharing(group);
}

void Cutter::check_sharing(const Analysis::Changed& group) {
  std::map<int, std::string> changing;  // by stage: what changes the memory
  for (const int node : group.nodes) changing.emplace(stage_of(node), describe(node));
  for (const int update : group.updates) {
    const Update& own = program_.updates[static_cast<std::size_t>(update)];
    changing.emplace(home(own.value),
                     "the update of '" + program_.inputs[static_cast<std::size_t>(own.input)].name + "'");
  }
  if (changing.size() > 1) {
    throw InvalidArgument("a cut between " + changing.begin()->second + " and " + changing.rbegin()->second +
                          " would separate two changes of the same memory: cut elsewhere");
  }
  const std::string& change = changing.begin()->second;
  const int stage = changing.begin()->first;
  for (const ValueId value : group.values) {
    const int input = analysis_.input(value);
    const bool loaded = input >= 0 && program_.inputs[static_cast<std::size_t>(input)].is_loaded();
    for (int other = 0; other < stages_; ++other) {
      const bool wrong = loaded ? other != stage && needs(other).loaded.contains(input)
                                : other > stage && needs(other).received.contains(value) && home(value) < stage;
      if (!wrong) continue;
      throw InvalidArgument("stage " + std::to_string(other) + " would use " + describe_value(value) +
                            " without the change that " + change + " of stage " + std::to_string(stage) +
                            " makes to it: cut elsewhere");
    }
  }
  std::vector<ValueId> received;
  for (const ValueId value : group.values) {
    const bool is_user_input = stage == 0 && analysis_.maker(value) < 0 && analysis_.input(value) >= 0 &&
                               !program_.inputs[static_cast<std::size_t>(analysis_.input(value))].is_loaded();
    if (needs(stage).received.contains(value) || is_user_input) received.push_back(value);
  }
  if (received.size() > 1 && stage > 0) {
    throw InvalidArgument(describe_value(received[0]) + " and " + describe_value(received[1]) +
                          " may share memory that " + change + " changes, but stage " + std::to_string(stage) +
                          " would receive copies of both: cut elsewhere");
  }
  std::vector<ValueId>& copies = copies_[static_cast<std::size_t>(stage)];
  copies.insert(copies.end(), received.begin(), received.end());
}

CutProgram Cutter::assemble() {
  CutProgram result;
  result.stages.resize(static_cast<std::size_t>(stages_));
  std::map<int, std::vector<int>> stages_of_parameter;
  for (int stage = 0; stage < stages_; ++stage) {
    StageGraph& graph = result.stages[static_cast<std::size_t>(stage)];
    const Needs& own = needs(stage);
    if (stage == 0) {
      for (const Input& input : program_.inputs) {
        if (input.kind == Input::Kind::kUser) graph.receives.push_back(input.value);
      }
    } else {
      graph.receives.assign(own.received.begin(), own.received.end());
    }
    graph.nodes.assign(own.nodes.begin(), own.nodes.end());
    graph.loads.assign(own.loaded.begin(), own.loaded.end());
    for (const auto& [number, size] : own.sizes) graph.sizes.push_back(size);
    graph.updates = updates_[static_cast<std::size_t>(stage)];
    graph.copies = copies_[static_cast<std::size_t>(stage)];
    for (const int input : graph.loads) {
      if (program_.inputs[static_cast<std::size_t>(input)].kind == Input::Kind::kParameter)
        stages_of_parameter[input].push_back(stage);
    }
  }
  for (int stage = 1; stage < stages_; ++stage) {
    const std::vector<ValueId>& receives = result.stages[static_cast<std::size_t>(stage)].receives;
    for (std::size_t a = 0; a < receives.size(); ++a) {
      const int from = home(receives[a]);
      std::vector<ValueId>& sends = result.stages[static_cast<std::size_t>(from)].sends;
      const auto found = std::find(sends.begin(), sends.end(), receives[a]);
      const auto output = static_cast<int>(found - sends.begin());
      if (found == sends.end()) sends.push_back(receives[a]);
      result.edges.push_back({from, output, stage, static_cast<int>(a), receives[a]});
    }
  }
  for (auto& [input, stages] : stages_of_parameter) {
    if (stages.size() > 1) result.ties.push_back({input, std::move(stages)});
  }
  return result;
}

}  // namespace stagecraft::graph

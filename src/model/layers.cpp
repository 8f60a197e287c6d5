#include "layers.h"

#include <algorithm>
#include <map>
#include <set>

#include "calling.h"
#include "interpreter.h"
#include "stagecraft/model/pipe.h"

namespace stagecraft {
namespace {

using graph::ValueId;

/// The path up to its first component that is a number: "blocks.3.mlp" is in "blocks.3"; empty if there is none.
std::string layer_of(const std::string& path) {
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const auto is_digit = [](char letter) { return letter >= '0' && letter <= '9'; };
    if (std::all_of(path.begin() + static_cast<std::ptrdiff_t>(begin), path.begin() + static_cast<std::ptrdiff_t>(end),
                    is_digit)) {
      return path.substr(0, end);
    }
    begin = end + 1;
  }
  return {};
}

/// The cuts of the stages and between the layers of one of them, ascending, each with the name of the layer that
/// begins there.
std::map<int, std::string> finer_places(const ExportedStage& stage) {
  const graph::Program& program = *stage.program;
  std::map<int, std::string> places;
  for (const int place : stage.places) places[place] = "";
  const int begin = stage.index == 0 ? 0 : stage.places[stage.index - 1];
  const int end = stage.is_last() ? static_cast<int>(program.nodes.size()) : stage.places[stage.index];
  const auto layer_at = [&](int node) {
    const graph::Node& own = program.nodes[static_cast<std::size_t>(node)];
    return layer_of(program.modules[static_cast<std::size_t>(own.module)].path);
  };
  const auto add = [&](int place, const std::string& name) {
    if (place <= begin || place >= end) return;
    std::vector<int> all = {place};
    for (const auto& [other, unused] : places) all.push_back(other);
    std::sort(all.begin(), all.end());
    if (graph::reason_against(program, all).empty()) places[place] = name;
  };
  std::set<std::string> begun;
  int after_last = begin;
  for (int node = begin; node < end; ++node) {
    const std::string name = layer_at(node);
    if (name.empty()) continue;
    after_last = node + 1;
    if (!begun.insert(name).second) continue;
    if (node == begin && stage.index > 0) places[begin] = name;
    add(node, name);
  }
  add(after_last, "");
  return places;
}

/// Runs the nodes of one layer on the values that are alive before it, and returns those that are alive after it.
class Layer {
 public:
  Layer(const ExportedStage& stage, const graph::StageGraph& own, std::vector<ValueId> before,
        std::vector<ValueId> after, bool is_first, bool is_last)
      : program_(stage.program),
        before_(std::move(before)),
        after_(std::move(after)),
        takes_user_inputs_(is_first && stage.index == 0),
        returns_result_(is_last && stage.is_last()),
        own_(own),
        interpreter_(std::make_shared<Interpreter>(program_, own, stage.loaded, stage.device, returns_result_)) {}

  Value operator()(const StageCall& call) const {
    const ValueList given = takes_user_inputs_ ? user_inputs(*program_, call) : call.arguments;
    std::map<ValueId, Value> alive;
    for (std::size_t i = 0; i < before_.size(); ++i) alive[before_[i]] = given.at(i);
    ValueList received;
    for (const ValueId value : own_.receives) received.push_back(alive.at(value));
    ValueList made = interpreter_->run(received);
    if (returns_result_) return nested(program_->result, made);
    for (std::size_t i = 0; i < own_.sends.size(); ++i) alive[own_.sends[i]] = std::move(made[i]);
    ValueList results;
    for (const ValueId value : after_) results.push_back(alive.at(value));
    return results;
  }

 private:
  std::shared_ptr<const graph::Program> program_;
  std::vector<ValueId> before_;
  std::vector<ValueId> after_;
  bool takes_user_inputs_;
  bool returns_result_;
  graph::StageGraph own_;
  std::shared_ptr<Interpreter> interpreter_;
};

/// One layer: for a stage whose layers exchange a number, such as a size of the batch, that the stage itself finds in
/// another way.
std::vector<StageLayer> whole_stage(const ExportedStage& stage) {
  return {{"", Layer(stage, stage.graph, stage.graph.receives, stage.graph.sends, true, true)}};
}

}  // namespace

std::vector<StageLayer> layers_of(const ExportedStage& stage) {
  const std::map<int, std::string> finer = finer_places(stage);
  std::vector<int> places;
  for (const auto& [place, name] : finer) places.push_back(place);
  const graph::CutProgram cut = graph::cut(*stage.program, places);
  const auto first = static_cast<std::size_t>(
      stage.index == 0 ? 0 : 1 + std::distance(finer.begin(), finer.find(stage.places[stage.index - 1])));
  const std::size_t end =
      stage.is_last()
          ? cut.stages.size()
          : 1 + static_cast<std::size_t>(std::distance(finer.begin(), finer.find(stage.places[stage.index])));

  std::vector<StageLayer> layers;
  std::vector<ValueId> alive = stage.graph.receives;
  for (std::size_t i = first; i < end; ++i) {
    const graph::StageGraph& own = cut.stages[i];
    std::set<ValueId> needed(stage.graph.sends.begin(), stage.graph.sends.end());
    for (std::size_t later = i + 1; later < end; ++later) {
      needed.insert(cut.stages[later].receives.begin(), cut.stages[later].receives.end());
    }
    const bool is_last = i + 1 == end;
    std::set<ValueId> there(alive.begin(), alive.end());
    const auto has_all = [&](const std::vector<ValueId>& values) {
      return std::all_of(values.begin(), values.end(), [&](ValueId value) { return there.contains(value); });
    };
    if (!has_all(own.receives)) return whole_stage(stage);
    there.insert(own.sends.begin(), own.sends.end());
    std::vector<ValueId> after;
    if (is_last) {
      if (!has_all(stage.graph.sends)) return whole_stage(stage);
      after = stage.graph.sends;
    } else {
      std::set_intersection(there.begin(), there.end(), needed.begin(), needed.end(), std::back_inserter(after));
    }
    const std::string name = i == 0 ? "" : finer.at(places[i - 1]);
    layers.push_back({name, Layer(stage, own, alive, after, i == first, is_last)});
    alive = std::move(after);
  }
  return layers;
}

}  // namespace stagecraft

#include "stagecraft/graph/cut.h"

#include <algorithm>

#include "cutter.h"
#include "stagecraft/core/error.h"
#include "sweep.h"

namespace stagecraft::graph {
namespace {

bool is_in(const Program& program, int module, int wanted) {
  for (; module >= 0; module = program.modules[static_cast<std::size_t>(module)].parent) {
    if (module == wanted) return true;
  }
  return false;
}

std::string names_of(const Program& program) {
  constexpr std::size_t kMost = 12;
  std::string list;
  std::size_t named = 0;
  for (const Module& module : program.modules) {
    if (module.path.empty()) continue;
    if (++named > kMost) return list + ", ...";
    list += (list.empty() ? "" : ", ") + module.path;
  }
  return list;
}

/// The first owned node of a module and one past its last; {-1, -1} when it has none.
std::pair<int, int> extent(const Program& program, const Analysis& analysis, int module) {
  std::pair<int, int> range{-1, -1};
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    if (!analysis.is_owned(static_cast<int>(i)) || !is_in(program, program.nodes[i].module, module)) continue;
    if (range.first < 0) range.first = static_cast<int>(i);
    range.second = static_cast<int>(i) + 1;
  }
  return range;
}

std::string text(const ModuleCut& cut) {
  return (cut.at == ModuleCut::At::kBeginning ? "the beginning of '" : "the end of '") + cut.module + "'";
}

/// The first owned node from `place` on. Cuts before the same owned node are the same cut.
int owned_from(const Program& program, const Analysis& analysis, int place) {
  while (place < static_cast<int>(program.nodes.size()) && !analysis.is_owned(place)) ++place;
  return place;
}

}  // namespace

CutProgram cut(const Program& program, const std::vector<int>& places) {
  const Analysis analysis(program);
  return Cutter(program, analysis, places).run();
}

std::string reason_against(const Program& program, const std::vector<int>& places) {
  try {
    cut(program, places);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

std::vector<int> places_of(const Program& program, const std::vector<ModuleCut>& cuts) {
  const Analysis analysis(program);
  std::string missing;
  std::vector<std::pair<int, const ModuleCut*>> found;
  for (const ModuleCut& wanted : cuts) {
    const int module = program.find_module(wanted.module);
    const auto [first, end] = module < 0 ? std::pair{-1, -1} : extent(program, analysis, module);
    if (first < 0) {
      missing += (missing.empty() ? "'" : ", '") + wanted.module + "'";
      continue;
    }
    found.emplace_back(owned_from(program, analysis, wanted.at == ModuleCut::At::kBeginning ? first : end), &wanted);
  }
  if (!missing.empty()) {
    throw InvalidArgument("no module of the model that computes anything is called " + missing + ": modules are " +
                          names_of(program));
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<int> places;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (i > 0 && found[i].first == found[i - 1].first) {
      throw InvalidArgument(text(*found[i - 1].second) + " and " + text(*found[i].second) +
                            " are the same place, a stage between them would be empty: give one of them");
    }
    places.push_back(found[i].first);
  }
  return places;
}

std::vector<int> marked_places(const Program& program) {
  if (!program.marks.empty()) return program.marks;
  std::vector<int> places;
  int stage = -1;
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    if (node.stage < 0 || node.stage == stage) continue;
    if (node.stage < stage) {
      throw InvalidArgument(program.describe(node) + " is annotated as stage " + std::to_string(node.stage) +
                            " but comes after stage " + std::to_string(stage) + ": stages must ascend");
    }
    if (stage >= 0) places.push_back(static_cast<int>(i));
    stage = node.stage;
  }
  if (places.empty()) {
    throw InvalidArgument(
        "the model has no marks to be cut at: call pipe_split() in it, name modules, or give a number of stages");
  }
  return places;
}

std::vector<LegalCut> legal_module_cuts(const Program& program) {
  const Analysis analysis(program);
  // By node: the outermost module that begins there, or -1.
  std::vector<int> beginning(program.nodes.size(), -1);
  std::vector<bool> begun(program.modules.size(), false);
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    if (!analysis.is_owned(static_cast<int>(i))) continue;
    for (int m = program.nodes[i].module; m > 0 && !begun[static_cast<std::size_t>(m)];
         m = program.modules[static_cast<std::size_t>(m)].parent) {
      begun[static_cast<std::size_t>(m)] = true;
      beginning[i] = m;
    }
  }
  std::vector<LegalCut> cuts;
  const Sweep sweep(program, analysis);
  for (const Sweep::Place& place : sweep.places()) {
    const int module = beginning[static_cast<std::size_t>(place.node)];
    if (module > 0) {
      cuts.push_back({place.node, program.modules[static_cast<std::size_t>(module)].path, place.bytes});
    }
  }
  return cuts;
}

}  // namespace stagecraft::graph

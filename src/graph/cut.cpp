#include "stagecraft/graph/cut.h"

#include <algorithm>
#include <limits>
#include <set>

#include "cutter.h"
#include "stagecraft/core/error.h"

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

/// The first and one past the last owned node of a module; {-1, -1} when it has none.
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

/// The next owned node: cuts before the same one are the same cut.
int owned_from(const Program& program, const Analysis& analysis, int place) {
  while (place < static_cast<int>(program.nodes.size()) && !analysis.is_owned(place)) ++place;
  return place;
}

struct Division {
  double cost = 0;
  std::vector<int> ends;  // of all stages but the last, ascending
};

/// The cheapest way to divide positions 0 .. count - 1 into stages that end at ascending ones, the last at `count`.
/// `add(so_far, from, to)` is the cost with one more stage.
template <typename Add>
Division divide(int stages, int count, const Add& add) {
  struct Best {
    double cost = std::numeric_limits<double>::infinity();
    int before = -1;
  };
  const auto width = static_cast<std::size_t>(count) + 1;
  std::vector<std::vector<Best>> best(static_cast<std::size_t>(stages), std::vector<Best>(width));
  for (int to = 0; to <= count; ++to) best[0][static_cast<std::size_t>(to)].cost = add(0, -1, to);
  for (std::size_t s = 1; s < best.size(); ++s) {
    for (int to = static_cast<int>(s); to <= count; ++to) {
      Best& own = best[s][static_cast<std::size_t>(to)];
      for (int from = static_cast<int>(s) - 1; from < to; ++from) {
        const double cost = add(best[s - 1][static_cast<std::size_t>(from)].cost, from, to);
        if (own.before < 0 || cost < own.cost) own = {cost, from};
      }
    }
  }
  Division division{best.back().back().cost, {}};
  for (int s = stages - 1, to = count; s > 0; --s) {
    to = best[static_cast<std::size_t>(s)][static_cast<std::size_t>(to)].before;
    division.ends.push_back(to);
  }
  std::reverse(division.ends.begin(), division.ends.end());
  return division;
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
  std::vector<LegalCut> cuts;
  std::set<int> seen;
  for (std::size_t m = 1; m < program.modules.size(); ++m) {
    const int first = extent(program, analysis, static_cast<int>(m)).first;
    if (first < 0 || !seen.insert(first).second) continue;
    try {
      Cutter cutter(program, analysis, {first});
      const CutProgram halves = cutter.run();
      cuts.push_back({first, program.modules[m].path, cutter.bytes_sent(halves)});
    } catch (const InvalidArgument&) {
      continue;
    }
  }
  std::sort(cuts.begin(), cuts.end(), [](const LegalCut& a, const LegalCut& b) { return a.place < b.place; });
  return cuts;
}

std::vector<int> balanced_places(const Program& program, int stages, const std::vector<double>& work) {
  if (stages < 1) throw InvalidArgument("a model is cut into at least 1 stage, not " + std::to_string(stages));
  if (!work.empty() && work.size() != program.nodes.size()) {
    throw InvalidArgument("work is given for " + std::to_string(work.size()) + " nodes, but there are " +
                          std::to_string(program.nodes.size()));
  }
  if (stages == 1) return {};
  const Analysis analysis(program);

  // Candidates: before every owned node where a cut in two is legal, and what crosses there.
  std::vector<int> places;
  std::vector<std::int64_t> sent;
  for (int node = 1; node < static_cast<int>(program.nodes.size()); ++node) {
    if (!analysis.is_owned(node)) continue;
    try {
      Cutter cutter(program, analysis, {node});
      sent.push_back(cutter.bytes_sent(cutter.run()));
      places.push_back(node);
    } catch (const InvalidArgument&) {
      continue;
    }
  }
  const auto count = static_cast<int>(places.size());
  if (count < stages - 1) {
    throw InvalidArgument("the model can be cut in " + std::to_string(count) + " places, too few for " +
                          std::to_string(stages) + " stages: ask for fewer");
  }
  std::vector<double> before(program.nodes.size() + 1, 0);  // work of the nodes before a place
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    before[i + 1] = before[i] + (work.empty() ? work_of(program, program.nodes[i]) : work[i]);
  }
  const auto work_between = [&](int from, int to) {  // positions in `places`; -1 and `count` are the ends
    const int begin = from < 0 ? 0 : places[static_cast<std::size_t>(from)];
    const int end = to == count ? static_cast<int>(program.nodes.size()) : places[static_cast<std::size_t>(to)];
    return before[static_cast<std::size_t>(end)] - before[static_cast<std::size_t>(begin)];
  };

  // First the least possible size of the largest stage; then, with stages hardly larger than that, the least to send.
  constexpr double kTolerance = 1.1;
  const Division smallest =
      divide(stages, count, [&](double so_far, int from, int to) { return std::max(so_far, work_between(from, to)); });
  const double limit = kTolerance * smallest.cost;
  const Division chosen = divide(stages, count, [&](double so_far, int from, int to) {
    if (work_between(from, to) > limit) return std::numeric_limits<double>::infinity();
    return so_far + (to == count ? 0 : static_cast<double>(sent[static_cast<std::size_t>(to)]));
  });
  std::vector<int> result;
  for (const int c : chosen.ends) result.push_back(places[static_cast<std::size_t>(c)]);
  return result;
}

}  // namespace stagecraft::graph

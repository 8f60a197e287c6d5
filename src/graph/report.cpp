#include "stagecraft/graph/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "stagecraft/graph/operators.h"

namespace stagecraft::graph {
namespace {

/// The first and the last module of a stage: "a .. b".
std::string range_of(const Program& program, const StageGraph& stage) {
  std::string first;
  std::string last;
  for (const int node : stage.nodes) {
    const std::string& path =
        program.modules[static_cast<std::size_t>(program.nodes[static_cast<std::size_t>(node)].module)].path;
    if (path.empty()) continue;
    if (first.empty()) first = path;
    last = path;
  }
  return first == last ? first : first + " .. " + last;
}

}  // namespace

std::int64_t bytes_of(const Program& program, ValueId value) {
  const ValueInfo& info = program.values[static_cast<std::size_t>(value)];
  return info.is_tensor() ? info.tensor.bytes() : 8;
}

std::vector<ValueId> crossing(const CutProgram& cut, int boundary) {
  std::set<ValueId> values;
  for (const CutEdge& edge : cut.edges) {
    if (edge.from <= boundary && edge.to > boundary) values.insert(edge.value);
  }
  return {values.begin(), values.end()};
}

std::string count_text(double count) {
  static constexpr std::array kUnits = {"", "k", "M", "G", "T", "P"};
  std::size_t unit = 0;
  for (; count >= 1000 && unit + 1 < kUnits.size(); ++unit) count /= 1000;
  return fmt::format("{:.{}f}{}", count, unit == 0 || count >= 100 ? 0 : count >= 10 ? 1 : 2, kUnits[unit]);
}

std::vector<StageFigures> figures_of(const Program& program, const CutProgram& cut) {
  std::vector<StageFigures> all;
  for (std::size_t s = 0; s < cut.stages.size(); ++s) {
    const StageGraph& stage = cut.stages[s];
    StageFigures& own = all.emplace_back();
    own.nodes = static_cast<int>(stage.nodes.size());
    for (const int node : stage.nodes) own.work += work_of(program, program.nodes[static_cast<std::size_t>(node)]);
    for (const int input : stage.loads) {
      const Input& loaded = program.inputs[static_cast<std::size_t>(input)];
      if (loaded.kind != Input::Kind::kParameter) continue;
      own.parameters = capped_sum(own.parameters, loaded.stored.elements());
      own.parameter_bytes = capped_sum(own.parameter_bytes, loaded.stored.bytes());
    }
    const auto index = static_cast<int>(s);
    for (const ValueId value : crossing(cut, index - 1)) {
      own.bytes_in = capped_sum(own.bytes_in, bytes_of(program, value));
    }
    for (const ValueId value : crossing(cut, index)) {
      own.bytes_out = capped_sum(own.bytes_out, bytes_of(program, value));
    }
  }
  return all;
}

std::string bytes_text(std::int64_t bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  return fmt::format("{:.{}f} {}", size, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string summary(const Program& program, const CutProgram& cut) {
  std::string out = fmt::format("{:>5} {:>6} {:>11} {:>10} {:>8} {:>10} {:>10}  {}\n", "stage", "ops", "parameters",
                                "bytes", "work", "in", "out", "modules");
  const std::vector<StageFigures> figures = figures_of(program, cut);
  for (std::size_t s = 0; s < figures.size(); ++s) {
    const StageFigures& own = figures[s];
    out += fmt::format("{:>5} {:>6} {:>11} {:>10} {:>8} {:>10} {:>10}  {}\n", s, own.nodes,
                       count_text(static_cast<double>(own.parameters)), bytes_text(own.parameter_bytes),
                       count_text(own.work), bytes_text(own.bytes_in), bytes_text(own.bytes_out),
                       range_of(program, cut.stages[s]));
  }
  for (int boundary = 0; boundary + 1 < static_cast<int>(cut.stages.size()); ++boundary) {
    out += fmt::format("between {} and {}:", boundary, boundary + 1);
    for (const ValueId value : crossing(cut, boundary)) {
      const ValueInfo& info = program.values[static_cast<std::size_t>(value)];
      const bool goes_on = std::any_of(cut.edges.begin(), cut.edges.end(), [&](const CutEdge& edge) {
        return edge.value == value && edge.to > boundary + 1;
      });
      out += fmt::format(
          " {} {}{};", info.name,
          info.is_tensor() ? fmt::format("{} {}", text(info.tensor.element), text(info.tensor.sizes)) : "(a number)",
          goes_on ? " (also for later stages)" : "");
    }
    out.back() = '\n';
  }
  for (const Tie& tie : cut.ties) {
    out += fmt::format("tied: {} in stages {}\n", program.inputs[static_cast<std::size_t>(tie.input)].name,
                       fmt::join(tie.stages, " "));
  }
  return out;
}

}  // namespace stagecraft::graph

#include "model_report.h"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model_facts.h"
#include "model_memory.h"
#include "stagecraft/graph/cut.h"
#include "stagecraft/graph/operators.h"
#include "stagecraft/graph/report.h"

namespace stagecraft::cli {
namespace {

using graph::bytes_text;
using graph::count_text;
using graph::Input;
using graph::Port;
using graph::Program;

double total_work(const Program& program) {
  double work = 0;
  for (const graph::Node& node : program.nodes) work += graph::work_of(program, node);
  return work;
}

std::string range_text(const graph::Range& range) {
  if (range.least && range.most) return fmt::format("{} to {}", *range.least, *range.most);
  if (range.least) return fmt::format("{} up", *range.least);
  return range.most ? fmt::format("up to {}", *range.most) : "any";
}

std::string total_text(const Total& total) {
  return fmt::format("{}: {} numbers, {}", total.count, count_text(static_cast<double>(total.numbers)),
                     bytes_text(total.bytes));
}

std::string type_text(const graph::StoredTensor& tensor) {
  return fmt::format("{} [{}]", graph::text(tensor.element), fmt::join(tensor.sizes, ", "));
}

/// Labelled lines; a label that repeats is shown once.
class Lines {
 public:
  void add(std::string_view label, std::string_view value) {
    text_ += fmt::format("{:<16} {}\n", label == last_ ? "" : label, value);
    last_ = label;
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::string last_;
};

std::string summary_text(const std::string& file, const Program& program) {
  Lines lines;
  lines.add("file", file);
  lines.add("torch", program.torch_version);
  for (const Port& port : input_ports(program)) {
    lines.add("inputs", fmt::format("{}: {}", port.name, port_text(program, port.argument)));
  }
  for (const Port& port : output_ports(program)) {
    const std::string what = port_text(program, port.argument);
    lines.add("outputs", port.name.empty() ? what : fmt::format("{}: {}", port.name, what));
  }
  const auto symbols = exported_symbols(program);
  for (const auto& [symbol, range] : program.ranges) {
    const auto value = symbols.find(symbol);
    lines.add("sizes", fmt::format("{}: {}{}", symbol, range_text(range),
                                   value == symbols.end() ? "" : fmt::format(", {} at export", value->second)));
  }
  lines.add("parameters", total_text(total_of(program, Input::Kind::kParameter)));
  for (const Input& input : program.inputs) {
    if (!input.other_names.empty())
      lines.add("tied", fmt::format("{} = {}", input.name, fmt::join(input.other_names, " = ")));
  }
  if (const Total buffers = total_of(program, Input::Kind::kBuffer); buffers.count > 0)
    lines.add("buffers", total_text(buffers));
  if (const Total constants = total_of(program, Input::Kind::kConstant); constants.count > 0)
    lines.add("constants", total_text(constants));
  const TrainingBytes training = training_bytes(program, {});
  const auto bytes = [](double count) { return bytes_text(static_cast<std::int64_t>(std::min(count, 1e18))); };
  lines.add("training", fmt::format("gradients {}, state of Adam {}, activations of a microbatch about {}",
                                    bytes(training.gradients), bytes(training.optimizer), bytes(training.activations)));
  lines.add("nodes", std::to_string(program.nodes.size()));
  lines.add("work", fmt::format("{} operations in a forward", count_text(total_work(program))));
  if (const auto missing = graph::missing_operators(program); !missing.empty())
    lines.add("missing", "operators that LibTorch does not have: " + graph::missing_text(missing));
  return lines.text();
}

std::string operators_text(const Program& program) {
  std::string out = fmt::format("\n{:<42} {:>6} {:>8}\n", "OPERATOR", "COUNT", "WORK");
  for (const OperatorFigures& own : operator_figures(program)) {
    out += fmt::format("{:<42} {:>6} {:>8}\n", own.name, own.count, count_text(own.work));
  }
  return out;
}

std::string modules_text(const Program& program, int depth) {
  std::string out =
      fmt::format("\n{:<42} {:>10} {:>10} {:>8} {:>6}  {}\n", "MODULE", "PARAMETERS", "BYTES", "WORK", "NODES", "TYPE");
  for (const ModuleFigures& module : module_tree(program)) {
    if (module.depth > depth) continue;
    const auto indent = static_cast<std::size_t>(2 * module.depth);
    const std::string name = std::string(indent, ' ') + (module.depth == 0 ? "(the model)" : module.name());
    out += fmt::format("{:<42} {:>10} {:>10} {:>8} {:>6}  {}\n", name,
                       count_text(static_cast<double>(module.parameters)), bytes_text(module.parameter_bytes),
                       count_text(module.work), module.nodes, module.type.substr(module.type.rfind('.') + 1));
  }
  return out;
}

std::string parameters_text(const Program& program) {
  std::string out = fmt::format("\n{:<42} {:>10}  {}\n", "PARAMETER", "BYTES", "TYPE");
  for (const Input& input : program.inputs) {
    if (input.kind != Input::Kind::kParameter) continue;
    out += fmt::format("{:<42} {:>10}  {}{}\n", input.name, bytes_text(input.stored.bytes()), type_text(input.stored),
                       input.stored.requires_grad ? "" : ", frozen");
  }
  return out;
}

std::string cuts_text(const Program& program) {
  const std::vector<graph::LegalCut> cuts = graph::legal_module_cuts(program);
  if (cuts.empty()) return "\nIt cannot be cut where a module begins.\n";
  std::string out = fmt::format("\n{:<42} {:>10}\n", "CAN BE CUT BEFORE", "ACROSS");
  for (const graph::LegalCut& cut : cuts) out += fmt::format("{:<42} {:>10}\n", cut.module, bytes_text(cut.bytes));
  return out;
}

Json total_json(const Total& total) {
  return {{"count", total.count}, {"numbers", total.numbers}, {"bytes", total.bytes}};
}

Json stored_json(const Program& program, Input::Kind kind) {
  Json list = Json::array();
  for (const Input& input : program.inputs) {
    if (input.kind != kind) continue;
    Json& own = list.emplace_back();
    own = {{"name", input.name},
           {"type", graph::text(input.stored.element)},
           {"sizes", input.stored.sizes},
           {"bytes", input.stored.bytes()}};
    if (kind == Input::Kind::kParameter) {
      own["requires_grad"] = input.stored.requires_grad;
      own["other_names"] = input.other_names;
    }
    if (kind == Input::Kind::kBuffer) own["persistent"] = input.persistent;
  }
  return list;
}

Json sizes_json(const Program& program) {
  const auto symbols = exported_symbols(program);
  Json list = Json::array();
  for (const auto& [symbol, range] : program.ranges) {
    const auto value = symbols.find(symbol);
    list.push_back({{"symbol", symbol},
                    {"exported", value == symbols.end() ? Json() : Json(value->second)},
                    {"least", or_null(range.least)},
                    {"most", or_null(range.most)}});
  }
  return list;
}

Json modules_json(const Program& program) {
  Json list = Json::array();
  for (const ModuleFigures& module : module_tree(program)) {
    list.push_back({{"path", module.path},
                    {"type", module.type},
                    {"depth", module.depth},
                    {"nodes", module.nodes},
                    {"parameters", module.parameters},
                    {"parameter_bytes", module.parameter_bytes},
                    {"work", module.work}});
  }
  return list;
}

}  // namespace

void write_model_report(std::ostream& out, const std::string& file, const Program& program,
                        const ModelReportOptions& options) {
  std::string text = summary_text(file, program) + operators_text(program);
  if (options.parameters) text += parameters_text(program);
  text += modules_text(program, options.depth) + cuts_text(program);
  out << printable_lines(text);
}

Json model_json(const std::string& file, const Program& program) {
  Json json = {{"file", printable(file)}, {"torch_version", program.torch_version}};
  json["inputs"] = Json::array();
  for (const Port& port : input_ports(program)) json["inputs"].push_back(port_json(program, port));
  json["outputs"] = Json::array();
  for (const Port& port : output_ports(program)) json["outputs"].push_back(port_json(program, port));
  json["sizes"] = sizes_json(program);
  json["nodes"] = program.nodes.size();
  json["work"] = total_work(program);
  json["totals"] = {{"parameters", total_json(total_of(program, Input::Kind::kParameter))},
                    {"buffers", total_json(total_of(program, Input::Kind::kBuffer))},
                    {"constants", total_json(total_of(program, Input::Kind::kConstant))}};
  const TrainingBytes training = training_bytes(program, {});
  json["training"] = {{"parameter_memory", training.parameters},
                      {"gradient_memory", training.gradients},
                      {"optimizer_memory", training.optimizer},
                      {"activation_memory", training.activations},
                      {"input_memory", training.inputs}};
  json["operators"] = Json::array();
  for (const OperatorFigures& own : operator_figures(program)) {
    json["operators"].push_back({{"name", own.name}, {"count", own.count}, {"work", own.work}});
  }
  json["missing_operators"] = missing_json(program);
  json["modules"] = modules_json(program);
  json["parameters"] = stored_json(program, Input::Kind::kParameter);
  json["buffers"] = stored_json(program, Input::Kind::kBuffer);
  json["constants"] = stored_json(program, Input::Kind::kConstant);
  json["cuts"] = Json::array();
  for (const graph::LegalCut& cut : graph::legal_module_cuts(program)) {
    json["cuts"].push_back({{"module", cut.module},
                            {"node", program.nodes[static_cast<std::size_t>(cut.place)].name},
                            {"place", cut.place},
                            {"bytes", cut.bytes}});
  }
  return json;
}

}  // namespace stagecraft::cli

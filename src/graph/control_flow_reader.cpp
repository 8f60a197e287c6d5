// Reads nodes that run graphs of their own. In the file:
//
//     cond        predicate, graph if true, graph if false, [operands]
//     while_loop  graph of the condition, graph of the body, [carried], [others]
//     scan        graph, [carried], [sliced], [others]
//     map_impl    graph, [sliced], [others]
//
// Each graph takes all operands in that order.

#include <array>
#include <utility>

#include "readers.h"

namespace stagecraft::graph {
namespace {

constexpr int kDeepestBody = 16;

struct Form {
  std::string_view target;
  std::string_view inputs;  // p predicate, g graph, c carried, s sliced, o others
};
constexpr std::array<Form, 4> kForms = {{{"higher_order::cond", "pggo"},
                                         {"higher_order::while_loop", "ggco"},
                                         {"higher_order::scan", "gcso"},
                                         {"higher_order::map_impl", "gso"}}};

const Form* form_of(std::string_view target) {
  for (const Form& form : kForms) {
    if (form.target == target) return &form;
  }
  return nullptr;
}

/// How many outputs a body has for a node with these results.
void check_outputs(const Cursor& cursor, const Node& node) {
  const std::size_t results = node.results.size();
  const auto carried = static_cast<std::size_t>(node.carried);
  const bool loop = node.target == "higher_order::while_loop";
  if (results < carried || (loop && results != carried)) cursor.refuse("has fewer results than values it carries");
  if (loop && node.bodies[0].outputs.size() != 1) cursor.refuse("has a condition that is not one value");
  for (std::size_t i = loop ? 1 : 0; i < node.bodies.size(); ++i) {
    if (node.bodies[i].outputs.size() == results) continue;
    cursor.refuse("has a body with " + std::to_string(node.bodies[i].outputs.size()) + " outputs, but " +
                  std::to_string(results) + " results");
  }
}

/// A scan or map goes through at least one tensor, and through nothing else.
void check_sliced(const Cursor& cursor, const Node& node) {
  if (node.sliced == 0) cursor.refuse("gives no tensor to go through: " + node.target + " needs one");
  for (int i = node.carried; i < node.carried + node.sliced; ++i) {
    const bool used = std::holds_alternative<Use>(node.arguments[static_cast<std::size_t>(i)].value);
    if (!used) cursor.refuse("gives a number to go through: " + node.target + " needs tensors");
  }
}

/// One result per value: there is no schema that makes some of them lists.
void flatten_results(Node& node) {
  std::vector<Result> flat;
  for (const Result& result : node.results) {
    for (const ValueId value : result.values) flat.push_back({false, {value}});
  }
  node.results = std::move(flat);
}

}  // namespace

bool is_control_flow(std::string_view target) { return form_of(target) != nullptr; }

void GraphReader::read_control_flow(const Cursor& cursor, const Cursor& graph, Node node, Scope& scope, int depth) {
  if (depth >= kDeepestBody) cursor.refuse("is nested more than " + std::to_string(kDeepestBody) + " deep");
  const std::string_view inputs = form_of(node.target)->inputs;
  try {
    const Cursor given = cursor["inputs"];
    if (given.size() < inputs.size()) given.refuse("has fewer entries than " + node.target + " takes");
    if (given.size() > inputs.size()) {
      given.refuse("has more entries than " + node.target + " takes, which is not supported: export with torch 2.13");
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Cursor argument_here = given.at(i)["arg"];
      const std::size_t before = node.arguments.size();
      if (inputs[i] == 'p') node.arguments.push_back({"predicate", argument(argument_here, scope)});
      if (inputs[i] == 'c') read_operands(argument_here, "carried", node, scope);
      if (inputs[i] == 's') read_operands(argument_here, "sliced", node, scope);
      if (inputs[i] == 'o') read_operands(argument_here, "other", node, scope);
      const auto added = static_cast<int>(node.arguments.size() - before);
      if (inputs[i] == 'c') node.carried = added;
      if (inputs[i] == 's') node.sliced = added;
    }
    if (inputs.find('s') != std::string_view::npos) check_sliced(given, node);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] == 'g') node.bodies.push_back(read_body(given.at(i)["arg"], node, depth));
    }
  } catch (const InvalidArgument& error) {
    faults_.add(program_.describe(node) + ": " + error.what());
  }
  read_results(cursor, graph, node, scope);
  flatten_results(node);
  if (faults_.empty()) check_outputs(cursor, node);
  nodes_->push_back(std::move(node));
}

void GraphReader::read_operands(const Cursor& cursor, const std::string& name, Node& node, const Scope& scope) {
  const auto add = [&](Argument value) {
    node.arguments.push_back({name + " " + std::to_string(node.arguments.size()), std::move(value)});
  };
  const auto [kind, list] = cursor.alternative();
  list.each([&, &kind_of_list = kind](const Cursor& item) {
    if (kind_of_list == "as_sym_floats") return add(sym(item, "as_float", scope));
    if (kind_of_list == "as_sym_bools") return add(sym(item, "as_bool", scope));
    if (kind_of_list == "as_sym_ints") return add(sym(item, "as_int", scope));
    if (kind_of_list == "as_ints") return add(item.integer());
    if (kind_of_list == "as_floats") return add(item.real());
    if (kind_of_list == "as_bools") return add(item.flag());
    // A list with numbers among tensors has this kind too.
    if (kind_of_list == "as_tensors") return add(use(item["name"].text(), item, scope));
    cursor.refuse("is of the kind " + kind_of_list + ", which is not supported as operands");
  });
}

Body GraphReader::read_body(const Cursor& cursor, const Node& node, int depth) {
  const Cursor graph = cursor["as_graph"]["graph"];
  const Cursor formals = graph["inputs"];
  const bool has_predicate = node.target == "higher_order::cond";
  const std::size_t first = has_predicate ? 1 : 0;
  if (node.arguments.size() - first != formals.size()) {
    cursor.refuse("has a graph with " + std::to_string(formals.size()) + " inputs, but " +
                  std::to_string(node.arguments.size() - first) + " operands");
  }
  Body body;
  Scope inside;
  const auto own = static_cast<std::size_t>(node.carried + node.sliced);
  for (std::size_t i = 0; i < formals.size(); ++i) {
    const auto [kind, value] = formals.at(i).alternative();
    body.formals.push_back(kNoValue);
    if (kind != "as_tensor" && !(kind.starts_with("as_sym_") && value.has("as_name"))) continue;
    const std::string name = value[kind == "as_tensor" ? "name" : "as_name"].text();
    const auto* used = std::get_if<Use>(&node.arguments[first + i].value);
    if (i >= own && used != nullptr) {
      inside[name] = used->value;
      continue;
    }
    const auto number = kind == "as_tensor"      ? ValueInfo::Kind::kTensor
                        : kind == "as_sym_int"   ? ValueInfo::Kind::kInteger
                        : kind == "as_sym_float" ? ValueInfo::Kind::kReal
                                                 : ValueInfo::Kind::kFlag;
    body.formals.back() = declare(name, number, graph, inside);
  }
  std::vector<Node>* const outer = std::exchange(nodes_, &body.nodes);
  try {
    read_nodes(graph, inside, node.context, depth + 1);
  } catch (...) {
    nodes_ = outer;
    throw;
  }
  nodes_ = outer;
  graph["outputs"].each([&](const Cursor& output) { body.outputs.push_back(argument(output, inside)); });
  return body;
}

}  // namespace stagecraft::graph

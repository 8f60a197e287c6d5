#include <algorithm>
#include <cctype>

#include "parse_json.h"
#include "readers.h"

namespace stagecraft::graph {
namespace {

constexpr int kDeepestRegion = 16;
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;

ElementType element_type(const Cursor& cursor) {
  const std::int64_t number = cursor.integer();
  if (!is_element_type(number)) {
    cursor.refuse("is " + std::to_string(number) + ", which is no element type of this format");
  }
  return static_cast<ElementType>(number);
}

/// An enumerator from 1 to `most`.
template <typename Enumeration>
Enumeration enumerated(const Cursor& cursor, int most) {
  const std::int64_t number = cursor.integer();
  if (number < 1 || number > most)
    cursor.refuse("is " + std::to_string(number) + ", but must be 1 to " + std::to_string(most));
  return static_cast<Enumeration>(number);
}

Device device(const Cursor& cursor) {
  Device result{cursor["type"].text(), std::nullopt};
  if (cursor.has("index")) result.index = static_cast<int>(cursor["index"].integer());
  return result;
}

/// "torch.ops.aten.linear.default" as "aten::linear", "torch.ops.aten.add.Tensor" as "aten::add.Tensor".
std::string operator_name(const std::string& target) {
  constexpr std::string_view kPrefix = "torch.ops.";
  if (!target.starts_with(kPrefix)) return target;
  const std::string rest = target.substr(kPrefix.size());
  const std::size_t first = rest.find('.');
  if (first == std::string::npos) return target;
  std::string name = rest.substr(first + 1);
  if (name.ends_with(".default")) name.resize(name.size() - std::string_view(".default").size());
  return rest.substr(0, first) + "::" + name;
}

}  // namespace

std::string GraphReader::plain_expression(const std::string& expression) {
  constexpr std::string_view kSymbol = "Symbol('";
  std::string plain;
  for (std::size_t at = 0; at < expression.size();) {
    if (expression.compare(at, kSymbol.size(), kSymbol) != 0) {
      plain += expression[at++];
      continue;
    }
    const std::size_t begin = at + kSymbol.size();
    const std::size_t end = expression.find('\'', begin);
    const std::size_t close = end == std::string::npos ? end : expression.find(')', end);
    if (close == std::string::npos) return expression;
    plain += expression.substr(begin, end - begin);
    at = close + 1;
  }
  return plain;
}

Size GraphReader::size(const Cursor& cursor) const {
  const auto [kind, value] = cursor.alternative();
  if (kind == "as_int") return {value.integer(), {}};
  if (kind != "as_expr") cursor.refuse("must be as_int or as_expr");
  Size result{1, plain_expression(value["expr_str"].text())};
  if (result.expression.empty()) value.refuse("has an empty expression");
  if (value.has("hint")) {
    const auto [hint_kind, hint] = value["hint"].alternative();
    if (hint_kind == "as_int") result.value = hint.integer();
  }
  return result;
}

TensorType GraphReader::tensor_type(const Cursor& cursor) {
  TensorType type;
  type.element = element_type(cursor["dtype"]);
  std::int64_t elements = 1;
  cursor["sizes"].each([&](const Cursor& item) {
    type.sizes.push_back(size(item));
    const std::int64_t own = type.sizes.back().value;
    if (own < 0) item.refuse("is negative");
    if (__builtin_mul_overflow(elements, own, &elements) || elements > kMostElements)
      item.refuse("makes the tensor too large");
  });
  return type;
}

Use GraphReader::use(const std::string& name, const Cursor& where, const Scope& scope) const {
  const auto found = scope.find(name);
  if (found == scope.end()) where.refuse("uses the value '" + name + "', which nothing before it makes");
  return {found->second};
}

std::vector<std::int64_t> GraphReader::integers(const Cursor& cursor) const {
  std::vector<std::int64_t> result;
  cursor.each([&](const Cursor& item) { result.push_back(item.integer()); });
  return result;
}

Argument GraphReader::sym(const Cursor& cursor, const char* fixed, const Scope& scope) {
  const auto [kind, value] = cursor.alternative();
  if (kind == "as_name") return use(value.text(), value, scope);
  if (kind != fixed) cursor.refuse("must be as_name or " + std::string(fixed));
  if (kind == "as_int") return value.integer();
  if (kind == "as_bool") return value.flag();
  return value.real();
}

Argument GraphReader::argument(const Cursor& cursor, const Scope& scope) {
  const auto [kind, value] = cursor.alternative();
  if (kind == "as_none") return {};
  if (kind == "as_tensor") return use(value["name"].text(), value, scope);
  if (kind == "as_int") return value.integer();
  if (kind == "as_float") return value.real();
  if (kind == "as_bool") return value.flag();
  if (kind == "as_string") return value.text();
  if (kind == "as_ints") return integers(value);
  if (kind == "as_sym_int") return sym(value, "as_int", scope);
  if (kind == "as_sym_float") return sym(value, "as_float", scope);
  if (kind == "as_sym_bool") return sym(value, "as_bool", scope);
  if (kind == "as_scalar_type") return element_type(value);
  if (kind == "as_layout") return enumerated<Layout>(value, 7);
  if (kind == "as_memory_format") return enumerated<MemoryFormat>(value, 4);
  if (kind == "as_device") return device(value);
  if (kind == "as_complex") return std::complex<double>(value["real"].real(), value["imag"].real());
  const auto optional_tensor = [&](const Cursor& item) -> Use {
    const auto [which, tensor] = item.alternative();
    if (which == "as_none") return {};
    if (which != "as_tensor") item.refuse("must be as_tensor or as_none");
    return use(tensor["name"].text(), tensor, scope);
  };
  if (kind == "as_optional_tensor") {
    const Use tensor = optional_tensor(value);
    return tensor.value == kNoValue ? Argument() : Argument(tensor);
  }
  if (kind == "as_tensors" || kind == "as_optional_tensors") {
    Uses tensors;
    const bool optional = kind == "as_optional_tensors";
    value.each([&](const Cursor& item) {
      tensors.push_back(optional ? optional_tensor(item) : use(item["name"].text(), item, scope));
    });
    return tensors;
  }
  if (kind == "as_sym_ints") {
    std::vector<IntegerOrUse> list;
    value.each([&](const Cursor& item) {
      const Argument one = sym(item, "as_int", scope);
      if (const auto* used = std::get_if<Use>(&one)) list.emplace_back(*used);
      if (const auto* number = std::get_if<std::int64_t>(&one)) list.emplace_back(*number);
    });
    return list;
  }
  if (kind == "as_floats") {
    std::vector<double> list;
    value.each([&](const Cursor& item) { list.push_back(item.real()); });
    return list;
  }
  if (kind == "as_bools") {
    std::vector<bool> list;
    value.each([&](const Cursor& item) { list.push_back(item.flag()); });
    return list;
  }
  if (kind == "as_strings") {
    std::vector<std::string> list;
    value.each([&](const Cursor& item) { list.push_back(item.text()); });
    return list;
  }
  cursor.refuse("is of the kind " + kind + ", which is not supported");
}

ValueId GraphReader::declare(const std::string& name, ValueInfo::Kind kind, const Cursor& graph, Scope& scope) {
  if (name.empty()) return kNoValue;
  ValueInfo info;
  info.name = name;
  info.kind = kind;
  if (kind == ValueInfo::Kind::kTensor) {
    const Cursor types = graph["tensor_values"];
    // Unused results have no type.
    if (types.has(name.c_str())) info.tensor = tensor_type(types[name.c_str()]);
  } else if (kind == ValueInfo::Kind::kInteger) {
    const Cursor numbers = graph["sym_int_values"];
    if (numbers.has(name.c_str())) info.number = size(numbers[name.c_str()]);
  }
  const auto id = static_cast<ValueId>(program_.values.size());
  program_.values.push_back(std::move(info));
  scope[name] = id;
  return id;
}

void GraphReader::declare_inputs(const Cursor& graph, Scope& scope) {
  graph["inputs"].each([&](const Cursor& cursor) {
    const auto [kind, value] = cursor.alternative();
    if (kind == "as_tensor") declare(value["name"].text(), ValueInfo::Kind::kTensor, graph, scope);
    if (kind == "as_sym_int" && value.has("as_name"))
      declare(value["as_name"].text(), ValueInfo::Kind::kInteger, graph, scope);
  });
}

void GraphReader::read_nodes(const Cursor& graph, Scope& scope, int context, int depth) {
  graph["nodes"].each([&](const Cursor& cursor) { read_node(cursor, graph, scope, context, depth); });
}

void GraphReader::read_node(const Cursor& cursor, const Cursor& graph, Scope& scope, int context, int depth) {
  const std::string target = cursor["target"].text();
  constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";
  const bool higher_order = target.starts_with(kHigherOrder);
  if (target.ends_with(".wrap_with_set_grad_enabled") || target.ends_with(".wrap_with_autocast")) {
    read_region(cursor, scope, context, depth);
    return;
  }
  Node node;
  node.target = operator_name(target);
  node.context = context;
  node.name = cursor.has("name") ? cursor["name"].text() : cursor.path();
  read_origin(cursor, node);
  if (node.target == "pippy::_pipe_split") {
    read_mark(node);
    return;
  }
  // An assertion that the export has checked already, for the device it ran on.
  if (node.target == "aten::_assert_tensor_metadata") return;
  if (is_control_flow(node.target)) {
    read_control_flow(cursor, graph, std::move(node), scope, depth);
    return;
  }
  if (higher_order) {
    faults_.add("node '" + node.name + "': the higher-order operator '" + target.substr(kHigherOrder.size()) +
                "' is not supported: write the model without it");
  }
  // Results are declared even after a fault, so that the other nodes can be checked too.
  if (!higher_order) read_arguments(cursor, node, scope);
  read_results(cursor, graph, node, scope);
  nodes_->push_back(std::move(node));
}

void GraphReader::read_mark(const Node& node) {
  if (nodes_ == &program_.nodes) {
    program_.marks.push_back(static_cast<int>(program_.nodes.size()));
  } else {
    faults_.add("node '" + node.name +
                "': pipe_split() is called inside control flow, which is never cut: call it before or after");
  }
}

void GraphReader::read_arguments(const Cursor& cursor, Node& node, const Scope& scope) {
  try {
    cursor["inputs"].each([&](const Cursor& given) {
      node.arguments.push_back({given["name"].text(), argument(given["arg"], scope)});
    });
  } catch (const InvalidArgument& error) {
    faults_.add(program_.describe(node) + ": " + error.what());
  }
}

void GraphReader::read_results(const Cursor& cursor, const Cursor& graph, Node& node, Scope& scope) {
  cursor["outputs"].each([&](const Cursor& made) {
    const auto [kind, value] = made.alternative();
    Result result;
    if (kind == "as_tensor") {
      result.values = {declare(value["name"].text(), ValueInfo::Kind::kTensor, graph, scope)};
    } else if (kind == "as_tensors") {
      result.list = true;
      value.each([&](const Cursor& item) {
        result.values.push_back(declare(item["name"].text(), ValueInfo::Kind::kTensor, graph, scope));
      });
    } else if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
      const auto number = kind == "as_sym_int"     ? ValueInfo::Kind::kInteger
                          : kind == "as_sym_float" ? ValueInfo::Kind::kReal
                                                   : ValueInfo::Kind::kFlag;
      result.values = {declare(value["as_name"].text(), number, graph, scope)};
    } else if (kind == "as_none") {
      result.values = {kNoValue};
    } else {
      made.refuse("is of the kind " + kind + ", which is not supported as a result");
    }
    node.results.push_back(std::move(result));
  });
}

void GraphReader::read_region(const Cursor& cursor, Scope& scope, int context, int depth) {
  if (depth >= kDeepestRegion) cursor.refuse("is nested more than " + std::to_string(kDeepestRegion) + " deep");
  const Cursor inputs = cursor["inputs"];
  const auto input = [&](std::size_t i) { return inputs.at(i)["arg"]; };
  Context inner = program_.contexts[static_cast<std::size_t>(context)];
  std::size_t body = 1;
  if (cursor["target"].text().ends_with("grad_enabled")) {
    inner.gradients = input(0)["as_bool"].flag();
  } else {
    Autocast autocast;
    autocast.device = input(0)["as_string"].text();
    if (input(1).has("as_scalar_type")) autocast.element = element_type(input(1)["as_scalar_type"]);
    autocast.enabled = input(2)["as_bool"].flag();
    inner.autocast = autocast;
    body = 4;
  }
  const Cursor graph = input(body)["as_graph"]["graph"];
  const Cursor formal = graph["inputs"];
  if (inputs.size() - body - 1 != formal.size()) cursor.refuse("does not give its region as many values as it takes");
  Scope inside;
  for (std::size_t i = 0; i < formal.size(); ++i) {
    const Argument given = argument(input(body + 1 + i), scope);
    const auto* used = std::get_if<Use>(&given);
    const auto [kind, value] = formal.at(i).alternative();
    if (kind == "as_tensor" && used != nullptr) {
      inside[value["name"].text()] = used->value;
    } else if (kind == "as_sym_int" && value.has("as_name") && used != nullptr) {
      inside[value["as_name"].text()] = used->value;
    }
  }
  read_nodes(graph, inside, find_or_add(inner), depth + 1);

  // The node's result names refer to the output values of the region's graph.
  std::vector<Use> made;
  graph["outputs"].each([&](const Cursor& output) {
    const Argument value = argument(output, inside);
    const auto* used = std::get_if<Use>(&value);
    made.push_back(used == nullptr ? Use{} : *used);
  });
  std::vector<std::string> names;
  const auto take_name = [&](const Cursor& output) {
    const auto [kind, value] = output.alternative();
    if (kind == "as_tensors") {
      value.each([&](const Cursor& item) { names.push_back(item["name"].text()); });
    } else {
      names.push_back(kind == "as_tensor"          ? value["name"].text()
                      : kind.starts_with("as_sym") ? value["as_name"].text()
                                                   : std::string());
    }
  };
  cursor["outputs"].each(take_name);
  if (names.size() != made.size()) cursor.refuse("does not name as many results as its region has");
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty() && made[i].value != kNoValue) scope[names[i]] = made[i].value;
  }
}

int GraphReader::find_or_add(const Context& context) {
  const auto found = std::find(program_.contexts.begin(), program_.contexts.end(), context);
  if (found != program_.contexts.end()) return static_cast<int>(found - program_.contexts.begin());
  program_.contexts.push_back(context);
  return static_cast<int>(program_.contexts.size()) - 1;
}

int GraphReader::find_or_add_module(const std::string& path, const std::string& type, int parent) {
  const auto [entry, added] = modules_.emplace(path, static_cast<int>(program_.modules.size()));
  if (added) program_.modules.push_back({path, type, parent});
  return entry->second;
}

/// Reads module, call number and annotated stage. The module stack has the form "key,path,type;key,path,type"; a key
/// ends in "@2" for a repeated call of the module.
void GraphReader::read_origin(const Cursor& cursor, Node& node) {
  if (!cursor.has("metadata")) return;
  const Cursor metadata = cursor["metadata"];
  if (metadata.has("nn_module_stack")) {
    const std::string stack = metadata["nn_module_stack"].text();
    for (std::size_t begin = 0; begin < stack.size();) {
      const std::size_t end = std::min(stack.find(';', begin), stack.size());
      const std::string entry = stack.substr(begin, end - begin);
      begin = end + 1;
      const std::size_t first = entry.find(',');
      const std::size_t last = entry.rfind(',');
      if (first == std::string::npos || last == first || entry.starts_with("_empty_nn_module_stack")) continue;
      const std::string key = entry.substr(0, first);
      const std::string path = entry.substr(first + 1, last - first - 1);
      const std::size_t again = key.rfind('@');
      node.call = 0;
      if (again != std::string::npos && again + 1 < key.size() && key.size() - again <= 6 &&
          std::all_of(key.begin() + static_cast<std::ptrdiff_t>(again) + 1, key.end(),
                      [](unsigned char c) { return std::isdigit(c) != 0; })) {
        node.call = std::stoi(key.substr(again + 1));
      }
      node.module = path.empty() ? 0 : find_or_add_module(path, entry.substr(last + 1), node.module);
      if (path.empty() && program_.modules[0].type.empty()) program_.modules[0].type = entry.substr(last + 1);
    }
  }
  if (metadata.has("custom")) {
    const auto custom = json::parse_or_null<Cursor::Json>(metadata["custom"].text());
    if (custom.is_object() && custom.contains("stage") && custom["stage"].is_number_integer()) {
      const auto stage = custom["stage"].get<std::int64_t>();
      if (stage >= 0 && stage < (1 << 20)) node.stage = static_cast<int>(stage);
    }
  }
}

}  // namespace stagecraft::graph

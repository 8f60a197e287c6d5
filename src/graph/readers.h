#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cursor.h"
#include "stagecraft/core/text.h"
#include "stagecraft/graph/program.h"

/// Readers of the parts of an exported program: JSON records, the graph, and the list of stored tensors.
namespace stagecraft::graph {

using json::Cursor;

/// Parses a whole record: filtering with the parser's callback would take quadratic time in the number of values.
/// Throws InvalidArgument that names the record.
nlohmann::json parsed_record(const ZipArchive& archive, const std::string& record);

/// Whether the format has an element type of this number.
constexpr bool is_element_type(std::int64_t number) {
  return (number >= 1 && number <= 13) || (number >= 28 && number <= 35);
}

/// Whether it is "higher_order::cond", "while_loop", "scan" or "map_impl".
bool is_control_flow(std::string_view target);

/// Reads nodes and values of a graph, and of the graphs of its regions, into a program. Collects faults of single
/// nodes; throws InvalidArgument for JSON that does not have the format.
class GraphReader {
 public:
  GraphReader(Program& program, Faults& faults) : program_(program), faults_(faults), nodes_(&program.nodes) {}

  /// Values by name, in the graph being read.
  using Scope = std::unordered_map<std::string, ValueId>;

  /// Declares the values of the graph's inputs, in order. Call it before `read_nodes`.
  void declare_inputs(const Cursor& graph, Scope& scope);
  void read_nodes(const Cursor& graph, Scope& scope, int context = 0, int depth = 0);

  /// Reads an argument of any kind except a graph.
  Argument argument(const Cursor& cursor, const Scope& scope);
  TensorType tensor_type(const Cursor& cursor);

  /// "Symbol('s72', positive=True, integer=True)" becomes "s72".
  static std::string plain_expression(const std::string& expression);

 private:
  ValueId declare(const std::string& name, ValueInfo::Kind kind, const Cursor& graph, Scope& scope);
  [[nodiscard]] Use use(const std::string& name, const Cursor& where, const Scope& scope) const;
  Argument sym(const Cursor& cursor, const char* fixed, const Scope& scope);
  std::vector<std::int64_t> integers(const Cursor& cursor) const;
  Size size(const Cursor& cursor) const;

  void read_node(const Cursor& cursor, const Cursor& graph, Scope& scope, int context, int depth);
  void read_arguments(const Cursor& cursor, Node& node, const Scope& scope);
  void read_results(const Cursor& cursor, const Cursor& graph, Node& node, Scope& scope);
  void read_region(const Cursor& cursor, Scope& scope, int context, int depth);
  void read_mark(const Node& node);
  void read_control_flow(const Cursor& cursor, const Cursor& graph, Node node, Scope& scope, int depth);
  void read_operands(const Cursor& cursor, const std::string& name, Node& node, const Scope& scope);
  Body read_body(const Cursor& cursor, const Node& node, int depth);
  void read_origin(const Cursor& cursor, Node& node);
  int find_or_add(const Context& context);
  int find_or_add_module(const std::string& path, const std::string& type, int parent);

  Program& program_;
  Faults& faults_;
  std::vector<Node>* nodes_;  // those of the program, or of the body being read
  std::unordered_map<std::string, int> modules_;
};

/// Stored tensors by full name.
struct StoredTensors {
  std::map<std::string, StoredTensor> tensors;
  std::set<std::string> refused;  ///< Names of tensors with a fault.
};

/// Reads the tensors that a folder's configuration lists, and checks that each is inside its record. Adds problems to
/// `faults`. Returns nothing for a folder without configuration.
StoredTensors read_stored(const ZipArchive& archive, const std::string& folder, const std::string& configuration,
                          Faults& faults);

}  // namespace stagecraft::graph

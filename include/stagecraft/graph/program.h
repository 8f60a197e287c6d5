#pragma once

#include <complex>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "stagecraft/file/zip.h"
#include "stagecraft/graph/tree.h"

/// A model exported by `torch.export.save`, as data.
namespace stagecraft::graph {

/// Element types with the numbers of the file format, which differ from those of LibTorch.
enum class ElementType : std::uint8_t {
  kUnknown = 0,
  kByte = 1,
  kChar = 2,
  kShort = 3,
  kInt = 4,
  kLong = 5,
  kHalf = 6,
  kFloat = 7,
  kDouble = 8,
  kComplexHalf = 9,
  kComplexFloat = 10,
  kComplexDouble = 11,
  kBool = 12,
  kBFloat16 = 13,
  kUInt16 = 28,
  kFloat8E4M3FN = 29,
  kFloat8E5M2 = 30,
  kFloat8E4M3FNUZ = 31,
  kFloat8E5M2FNUZ = 32,
  kFloat8E8M0FNU = 33,
  kUInt32 = 34,
  kUInt64 = 35,
};
/// "float32", as Python prints it.
std::string_view text(ElementType type);
std::int64_t bytes_of(ElementType type);
/// Whether tensors of this type can have gradients.
bool is_differentiable(ElementType type);

enum class Layout : std::uint8_t { kSparseCoo = 1, kSparseCsr, kSparseCsc, kSparseBsr, kSparseBsc, kMkldnn, kStrided };
enum class MemoryFormat : std::uint8_t { kContiguous = 1, kChannelsLast, kChannelsLast3d, kPreserve };

struct Device {
  std::string type;
  std::optional<int> index;
  bool operator==(const Device&) const = default;
};

/// A dimension of a tensor, or a number computed from dimensions: fixed, or a symbolic expression with its value at
/// export.
struct Size {
  std::int64_t value = 0;
  std::string expression = {};  ///< Empty if fixed.
  [[nodiscard]] bool fixed() const { return expression.empty(); }
  bool operator==(const Size&) const = default;
};

/// "[s0, 16, 32]".
std::string text(const std::vector<Size>& sizes);

struct TensorType {
  ElementType element = ElementType::kUnknown;
  std::vector<Size> sizes;

  /// Number of elements, with the sizes at export.
  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] std::int64_t bytes() const { return elements() * bytes_of(element); }
};

/// Saturating sum of two sizes, which come from a file and may be huge.
std::int64_t capped_sum(std::int64_t a, std::int64_t b);

/// A value that nodes make and use: an index in Program::values.
using ValueId = int;
constexpr ValueId kNoValue = -1;

struct ValueInfo {
  enum class Kind : std::uint8_t { kTensor, kInteger, kReal, kFlag };

  std::string name;
  Kind kind = Kind::kTensor;
  TensorType tensor;  ///< For a tensor.
  Size number;        ///< For an integer.

  [[nodiscard]] bool is_tensor() const { return kind == Kind::kTensor; }
};

/// A value used as an argument.
struct Use {
  ValueId value = kNoValue;
  bool operator==(const Use&) const = default;
};
/// A list of tensors; kNoValue stands for None.
using Uses = std::vector<Use>;
using IntegerOrUse = std::variant<std::int64_t, Use>;

using Argument = std::variant<std::monostate, Use, Uses, bool, std::int64_t, double, std::complex<double>, std::string,
                              ElementType, Layout, MemoryFormat, Device, std::vector<bool>, std::vector<std::int64_t>,
                              std::vector<double>, std::vector<std::string>, std::vector<IntegerOrUse>>;

struct NamedArgument {
  std::string name;  ///< Name in the operator's schema.
  Argument value;
};

/// One result of an operator: a value, or a list of values. kNoValue if it is unused.
struct Result {
  bool list = false;
  std::vector<ValueId> values;
};

struct Autocast {
  std::string device;
  ElementType element = ElementType::kUnknown;  ///< kUnknown means the device's default.
  bool enabled = true;
  bool operator==(const Autocast&) const = default;
};

/// Gradient and autocast modes of a region. Modes without a value are inherited from the caller of the program.
struct Context {
  std::optional<bool> gradients;
  std::optional<Autocast> autocast;
  bool operator==(const Context&) const = default;
};

struct Module {
  std::string path;  ///< "model.layers.0"; empty for the whole model.
  std::string type;  ///< Class name.
  int parent = -1;
};

struct Body;

struct Node {
  std::string name;
  std::string target;  ///< "aten::linear", "aten::add.Tensor"; "_operator.add" and the like as in the file.
  std::vector<NamedArgument> arguments;
  std::vector<Result> results;
  /// The innermost module that called the node, and how often that module had been called before.
  int module = 0;
  int call = 0;
  int context = 0;
  /// Stage annotated in the model, -1 without annotation.
  int stage = -1;
  /// For control flow ("higher_order::cond", "while_loop", "scan", "map_impl"): the two branches, the condition and the
  /// body of a loop, or the function of a scan or map. The arguments are the predicate of a branch, or first the
  /// `carried` values of a loop and then the `sliced` tensors, which are taken apart along their first dimension; the
  /// others are the same in each iteration.
  std::vector<Body> bodies;
  int carried = 0;
  int sliced = 0;

  [[nodiscard]] bool is_control_flow() const { return !bodies.empty(); }
  [[nodiscard]] const Argument* argument(std::string_view wanted) const;
  /// Every value that the node uses, once per use.
  [[nodiscard]] std::vector<ValueId> uses() const;
  [[nodiscard]] std::vector<ValueId> makes() const;
};

/// A graph that a node runs: a part of the program that is never cut. Its values are in Program::values; it uses those
/// of the program around it directly.
struct Body {
  /// By argument of the node (for a branch, without its predicate): the value it has inside, or kNoValue where the
  /// body uses the argument's own value.
  std::vector<ValueId> formals;
  std::vector<Node> nodes;
  std::vector<Argument> outputs;
};

/// Calls `visit` with each node, and with those in their bodies.
template <typename Visit>
void for_each_node(const std::vector<Node>& nodes, const Visit& visit) {
  for (const Node& node : nodes) {
    visit(node);
    for (const Body& body : node.bodies) for_each_node(body.nodes, visit);
  }
}

/// A tensor stored in the archive.
struct StoredTensor {
  std::string record;
  ElementType element = ElementType::kUnknown;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;  ///< In elements.
  std::int64_t offset = 0;            ///< In elements.
  bool requires_grad = false;

  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] std::int64_t bytes() const { return elements() * bytes_of(element); }
  bool operator==(const StoredTensor&) const = default;
};

struct Input {
  enum class Kind : std::uint8_t {
    kParameter,
    kBuffer,
    kConstant,
    kUser,
    kFixed,  ///< A user input that was specialised to a constant at export.
  };

  Kind kind = Kind::kUser;
  ValueId value = kNoValue;  ///< kNoValue if fixed.
  std::string name;          ///< Full name in the model, or the name of a user input.
  bool persistent = true;    ///< For a buffer.
  StoredTensor stored = {};  ///< For a parameter, buffer or constant.
  Argument fixed = {};
  /// For a parameter: other names of the same weight, whose uses are replaced by this one.
  std::vector<std::string> other_names = {};

  [[nodiscard]] bool is_loaded() const { return kind != Kind::kUser && kind != Kind::kFixed; }
};

/// A new value of a buffer, assigned at the end of the program.
struct Update {
  int input = 0;  ///< Index of the buffer in Program::inputs.
  ValueId value = kNoValue;
};

struct Range {
  std::optional<std::int64_t> least;
  std::optional<std::int64_t> most;
};

struct Program {
  std::string torch_version;
  std::vector<ValueInfo> values;
  std::vector<Input> inputs;
  std::vector<Node> nodes;  ///< In order of execution; regions are flattened.
  std::vector<Argument> outputs;
  std::vector<Update> updates;
  std::vector<Context> contexts;  ///< The first is that of the whole program.
  std::vector<Module> modules;    ///< The first is the whole model; parents before children.
  /// Indices in `nodes` before which the model calls `pipe_split`.
  std::vector<int> marks;
  std::map<std::string, Range> ranges;

  // The leaves are, in order, the inputs of kinds kUser and kFixed, and the outputs.
  Tree arguments;  ///< A list.
  Tree keywords;   ///< A dict.
  Tree result;
  std::vector<std::string> argument_names;

  /// The values among the outputs.
  [[nodiscard]] std::vector<ValueId> output_values() const;
  /// "node 'linear_3' (aten::linear in model.layers.0.mlp)".
  [[nodiscard]] std::string describe(const Node& node) const;
  /// Index in `modules`, or -1.
  [[nodiscard]] int find_module(std::string_view path) const;
};

/// Reads the model of that name, or the only one. Reads and checks everything except the data of the weights: versions,
/// references, sizes and offsets of weights. Throws FileError, which lists all faults of one kind.
Program read_program(const ZipArchive& archive, const std::string& model = {});

}  // namespace stagecraft::graph

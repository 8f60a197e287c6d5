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

/// The numbers of the file format, which are not those of LibTorch.
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
/// Whether gradients of it exist.
bool is_differentiable(ElementType type);

enum class Layout : std::uint8_t { kSparseCoo = 1, kSparseCsr, kSparseCsc, kSparseBsr, kSparseBsc, kMkldnn, kStrided };
enum class MemoryFormat : std::uint8_t { kContiguous = 1, kChannelsLast, kChannelsLast3d, kPreserve };

struct Device {
  std::string type;
  std::optional<int> index;
  bool operator==(const Device&) const = default;
};

/// A size of a tensor, or a number computed from sizes: fixed, or an expression of symbols with its value at export.
struct Size {
  std::int64_t value = 0;
  std::string expression = {};  ///< Empty: fixed.
  [[nodiscard]] bool fixed() const { return expression.empty(); }
  bool operator==(const Size&) const = default;
};

/// "[s0, 16, 32]".
std::string text(const std::vector<Size>& sizes);

struct TensorType {
  ElementType element = ElementType::kUnknown;
  std::vector<Size> sizes;

  /// With the sizes of the export.
  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] std::int64_t bytes() const { return elements() * bytes_of(element); }
};

/// The sum of two sizes, or the largest number there is: a file may claim anything.
std::int64_t capped_sum(std::int64_t a, std::int64_t b);

/// What nodes make and use; places in Program::values.
using ValueId = int;
constexpr ValueId kNoValue = -1;

struct ValueInfo {
  enum class Kind : std::uint8_t { kTensor, kInteger, kReal, kFlag };

  std::string name;
  Kind kind = Kind::kTensor;
  TensorType tensor;  ///< Of a tensor.
  Size number;        ///< Of an integer.

  [[nodiscard]] bool is_tensor() const { return kind == Kind::kTensor; }
};

/// A value as an argument.
struct Use {
  ValueId value = kNoValue;
  bool operator==(const Use&) const = default;
};
/// Tensors, and none where there is no value.
using Uses = std::vector<Use>;
using IntegerOrUse = std::variant<std::int64_t, Use>;

using Argument = std::variant<std::monostate, Use, Uses, bool, std::int64_t, double, std::complex<double>, std::string,
                              ElementType, Layout, MemoryFormat, Device, std::vector<bool>, std::vector<std::int64_t>,
                              std::vector<double>, std::vector<std::string>, std::vector<IntegerOrUse>>;

struct NamedArgument {
  std::string name;  ///< In the operator's schema.
  Argument value;
};

/// What an operator returns in one place: a value, or a list of them. kNoValue: nobody uses it.
struct Result {
  bool list = false;
  std::vector<ValueId> values;
};

struct Autocast {
  std::string device;
  ElementType element = ElementType::kUnknown;  ///< kUnknown: the device's usual.
  bool enabled = true;
  bool operator==(const Autocast&) const = default;
};

/// How nodes of a region run. What is not given is as around the whole program.
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

struct Node {
  std::string name;
  std::string target;  ///< "aten::linear", "aten::add.Tensor"; "_operator.add" and the like as in the file.
  std::vector<NamedArgument> arguments;
  std::vector<Result> results;
  /// The innermost module it was called in, and how often that module had been called before.
  int module = 0;
  int call = 0;
  int context = 0;
  /// From the model's own annotation of stages, -1 without one.
  int stage = -1;

  [[nodiscard]] const Argument* argument(std::string_view wanted) const;
  /// Every value that it uses, as often as it does.
  [[nodiscard]] std::vector<ValueId> uses() const;
  [[nodiscard]] std::vector<ValueId> makes() const;
};

/// A tensor that lies in the archive.
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
    kFixed,  ///< A user input that had to be just this value at export.
  };

  Kind kind = Kind::kUser;
  ValueId value = kNoValue;  ///< kNoValue: fixed.
  std::string name;          ///< Full name in the model; of a user input its own.
  bool persistent = true;    ///< Of a buffer.
  StoredTensor stored = {};  ///< Of a parameter, buffer or constant.
  Argument fixed = {};
  /// For a parameter: other names of the same weight, whose values are replaced by this one.
  std::vector<std::string> other_names = {};

  [[nodiscard]] bool is_loaded() const { return kind != Kind::kUser && kind != Kind::kFixed; }
};

/// A buffer that has another value after the program.
struct Update {
  int input = 0;  ///< Which buffer, in Program::inputs.
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
  std::vector<Context> contexts;  ///< The first is the one around all.
  std::vector<Module> modules;    ///< The first is the whole model; parents before children.
  /// Places in `nodes` before which the model wants to be cut.
  std::vector<int> marks;
  std::map<std::string, Range> ranges;

  // Leaves are `inputs` of kinds kUser and kFixed, and `outputs`, in order.
  Tree arguments;  ///< A list.
  Tree keywords;   ///< A dict.
  Tree result;
  std::vector<std::string> argument_names;

  /// The values among the outputs.
  [[nodiscard]] std::vector<ValueId> output_values() const;
  /// "node 'linear_3' (aten::linear in model.layers.0.mlp)".
  [[nodiscard]] std::string describe(const Node& node) const;
  /// -1: none.
  [[nodiscard]] int find_module(std::string_view path) const;
};

/// Reads the model of that name, or the only one. Everything but the weights themselves is read and checked: versions,
/// references, sizes and places of weights. Throws FileError with all faults of one kind together.
Program read_program(const ZipArchive& archive, const std::string& model = {});

}  // namespace stagecraft::graph

#include <algorithm>
#include <limits>

#include "stagecraft/graph/program.h"

namespace stagecraft::graph {

std::string_view text(ElementType type) {
  switch (type) {
    case ElementType::kUnknown:
      return "unknown";
    case ElementType::kByte:
      return "uint8";
    case ElementType::kChar:
      return "int8";
    case ElementType::kShort:
      return "int16";
    case ElementType::kInt:
      return "int32";
    case ElementType::kLong:
      return "int64";
    case ElementType::kHalf:
      return "float16";
    case ElementType::kFloat:
      return "float32";
    case ElementType::kDouble:
      return "float64";
    case ElementType::kComplexHalf:
      return "complex32";
    case ElementType::kComplexFloat:
      return "complex64";
    case ElementType::kComplexDouble:
      return "complex128";
    case ElementType::kBool:
      return "bool";
    case ElementType::kBFloat16:
      return "bfloat16";
    case ElementType::kUInt16:
      return "uint16";
    case ElementType::kFloat8E4M3FN:
      return "float8_e4m3fn";
    case ElementType::kFloat8E5M2:
      return "float8_e5m2";
    case ElementType::kFloat8E4M3FNUZ:
      return "float8_e4m3fnuz";
    case ElementType::kFloat8E5M2FNUZ:
      return "float8_e5m2fnuz";
    case ElementType::kFloat8E8M0FNU:
      return "float8_e8m0fnu";
    case ElementType::kUInt32:
      return "uint32";
    case ElementType::kUInt64:
      return "uint64";
  }
  return "unknown";
}

std::int64_t bytes_of(ElementType type) {
  switch (type) {
    case ElementType::kShort:
    case ElementType::kHalf:
    case ElementType::kBFloat16:
    case ElementType::kUInt16:
      return 2;
    case ElementType::kInt:
    case ElementType::kFloat:
    case ElementType::kComplexHalf:
    case ElementType::kUInt32:
      return 4;
    case ElementType::kLong:
    case ElementType::kDouble:
    case ElementType::kComplexFloat:
    case ElementType::kUInt64:
      return 8;
    case ElementType::kComplexDouble:
      return 16;
    default:
      return 1;
  }
}

bool is_differentiable(ElementType type) {
  switch (type) {
    case ElementType::kHalf:
    case ElementType::kBFloat16:
    case ElementType::kFloat:
    case ElementType::kDouble:
    case ElementType::kComplexHalf:
    case ElementType::kComplexFloat:
    case ElementType::kComplexDouble:
      return true;
    default:
      return false;
  }
}

std::string text(const std::vector<Size>& sizes) {
  std::string result = "[";
  for (const Size& size : sizes) {
    if (result.size() > 1) result += ", ";
    result += size.fixed() ? std::to_string(size.value) : size.expression;
  }
  return result + "]";
}

std::int64_t capped_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
}

std::int64_t TensorType::elements() const {
  std::int64_t count = 1;
  for (const Size& size : sizes) count *= size.value;
  return count;
}

std::int64_t StoredTensor::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return count;
}

const Argument* Node::argument(std::string_view wanted) const {
  const auto found = std::find_if(arguments.begin(), arguments.end(),
                                  [&](const NamedArgument& given) { return given.name == wanted; });
  return found == arguments.end() ? nullptr : &found->value;
}

namespace {

void add_values(const Argument& argument, std::vector<ValueId>& all) {
  const auto add = [&](const Use& use) {
    if (use.value != kNoValue) all.push_back(use.value);
  };
  if (const auto* use = std::get_if<Use>(&argument)) add(*use);
  if (const auto* uses = std::get_if<Uses>(&argument)) {
    for (const Use& use : *uses) add(use);
  }
  if (const auto* integers = std::get_if<std::vector<IntegerOrUse>>(&argument)) {
    for (const IntegerOrUse& integer : *integers) {
      if (const auto* use = std::get_if<Use>(&integer)) add(*use);
    }
  }
}

}  // namespace

std::vector<ValueId> Node::uses() const {
  std::vector<ValueId> all;
  for (const NamedArgument& given : arguments) add_values(given.value, all);
  return all;
}

std::vector<ValueId> Program::output_values() const {
  std::vector<ValueId> all;
  for (const Argument& output : outputs) add_values(output, all);
  return all;
}

std::vector<ValueId> Node::makes() const {
  std::vector<ValueId> all;
  for (const Result& result : results) {
    for (const ValueId value : result.values) {
      if (value != kNoValue) all.push_back(value);
    }
  }
  return all;
}

std::string Program::describe(const Node& node) const {
  const Module& module = modules[static_cast<std::size_t>(node.module)];
  return "node '" + node.name + "' (" + node.target + (module.path.empty() ? "" : " in " + module.path) + ")";
}

int Program::find_module(std::string_view path) const {
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (modules[i].path == path) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace stagecraft::graph

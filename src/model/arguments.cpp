#include "arguments.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/function_schema.h>

#include "stagecraft/core/error.h"
#include "torch_types.h"

namespace stagecraft {
namespace {

using c10::IValue;
using c10::TypeKind;
using graph::Argument;

[[noreturn]] void refuse(const std::string& why) { throw InvalidArgument(why); }

at::Tensor wrapped(const at::Scalar& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

std::optional<at::Scalar> scalar(const Argument& argument) {
  if (const auto* integer = std::get_if<std::int64_t>(&argument)) return at::Scalar(*integer);
  if (const auto* real = std::get_if<double>(&argument)) return at::Scalar(*real);
  if (const auto* flag = std::get_if<bool>(&argument)) return at::Scalar(*flag);
  if (const auto* complex = std::get_if<std::complex<double>>(&argument)) {
    return at::Scalar(c10::complex<double>(complex->real(), complex->imag()));
  }
  return std::nullopt;
}

/// Any list of numbers as a list of `Number`; a single number is repeated `count` times. None for other arguments.
template <typename Number>
std::optional<std::vector<Number>> numbers(const Argument& argument, std::size_t count) {
  if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&argument))
    return std::vector<Number>(integers->begin(), integers->end());
  if (const auto* reals = std::get_if<std::vector<double>>(&argument))
    return std::vector<Number>(reals->begin(), reals->end());
  if (const auto* flags = std::get_if<std::vector<bool>>(&argument))
    return std::vector<Number>(flags->begin(), flags->end());
  if (const auto* integer = std::get_if<std::int64_t>(&argument))
    return std::vector<Number>(count, static_cast<Number>(*integer));
  if (const auto* real = std::get_if<double>(&argument)) return std::vector<Number>(count, static_cast<Number>(*real));
  if (const auto* uses = std::get_if<graph::Uses>(&argument); uses != nullptr && uses->empty())
    return std::vector<Number>();
  return std::nullopt;
}

}  // namespace

void ArgumentMaker::make(const graph::Node& node, const c10::FunctionSchema& schema,
                         ModelInstruction& instruction) const {
  const std::vector<c10::Argument>& formals = schema.arguments();
  std::vector<const Argument*> given(formals.size(), nullptr);
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    const graph::NamedArgument& named = node.arguments[i];
    const std::optional<int> found =
        named.name.empty() ? std::optional<int>(static_cast<int>(i)) : schema.argumentIndexWithName(named.name);
    if (!found || static_cast<std::size_t>(*found) >= formals.size()) refuse("has no argument '" + named.name + "'");
    given[static_cast<std::size_t>(*found)] = &named.value;
  }
  instruction.arguments.resize(formals.size());
  for (std::size_t i = 0; i < formals.size(); ++i) {
    if (given[i] != nullptr) {
      try {
        instruction.arguments[i] = value(*given[i], formals[i], static_cast<std::uint32_t>(i), instruction);
      } catch (const InvalidArgument& error) {
        refuse("cannot take its argument '" + formals[i].name() + "': " + error.what());
      }
    } else if (formals[i].default_value()) {
      instruction.arguments[i] = *formals[i].default_value();
    } else {
      refuse("lacks its argument '" + formals[i].name() + "'");
    }
  }
}

void ArgumentMaker::make_numbers(const graph::Node& node, ModelInstruction& instruction) const {
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    const Argument& argument = node.arguments[i].value;
    const auto position = static_cast<std::uint32_t>(i);
    instruction.arguments.emplace_back();
    if (const auto* use = std::get_if<graph::Use>(&argument)) {
      instruction.fills.push_back({Fill::Kind::kValue, false, position, find_(use->value).slot});
    } else if (const auto number = scalar(argument)) {
      instruction.arguments.back() = IValue(*number);
    } else if (const auto* integers = std::get_if<std::vector<graph::IntegerOrUse>>(&argument)) {
      Fill fill{Fill::Kind::kIntegers, false, position};
      for (const graph::IntegerOrUse& each : *integers) {
        const auto* used = std::get_if<graph::Use>(&each);
        fill.slots.push_back(used == nullptr ? -1 : find_(used->value).slot);
        fill.fixed.emplace_back(used == nullptr ? std::get<std::int64_t>(each) : 0);
      }
      instruction.fills.push_back(std::move(fill));
    } else {
      refuse("computes with something that is no number");
    }
  }
}

IValue ArgumentMaker::literal(const Argument& argument) {
  if (const auto* integer = std::get_if<std::int64_t>(&argument)) return *integer;
  if (const auto* real = std::get_if<double>(&argument)) return *real;
  if (const auto* flag = std::get_if<bool>(&argument)) return *flag;
  return {};
}

void ArgumentMaker::make_operands(const graph::Node& node, const std::vector<bool>& given,
                                  ModelInstruction& instruction) const {
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    const Argument& argument = node.arguments[i].value;
    const auto* use = std::get_if<graph::Use>(&argument);
    instruction.arguments.push_back(literal(argument));
    if (use == nullptr) continue;
    const Place place = find_(use->value);
    if (place.loaded.defined()) {
      instruction.arguments.back() = place.loaded;
    } else {
      const Fill::Kind kind = given[i] ? Fill::Kind::kValue : Fill::Kind::kInBodies;
      instruction.fills.push_back({kind, false, static_cast<std::uint32_t>(i), place.slot});
    }
  }
}

IValue ArgumentMaker::value(const Argument& argument, const c10::Argument& formal, std::uint32_t position,
                            ModelInstruction& instruction) const {
  c10::TypePtr type = formal.type();
  const bool optional = type->kind() == TypeKind::OptionalType;
  if (optional) type = type->expectRef<c10::OptionalType>().getElementType();
  if (std::holds_alternative<std::monostate>(argument)) {
    if (!optional && type->kind() != TypeKind::TensorType) refuse("it is none, and must not be");
    return type->kind() == TypeKind::TensorType && !optional ? IValue(at::Tensor()) : IValue();
  }
  if (type->kind() == TypeKind::ListType) {
    return list(argument, formal, type->expectRef<c10::ListType>().getElementType(), position, instruction);
  }
  if (const auto* use = std::get_if<graph::Use>(&argument)) {
    if (use->value == graph::kNoValue) return {};
    const Place place = find_(use->value);
    if (place.loaded.defined()) {
      if (type->kind() != TypeKind::TensorType) refuse("a tensor is given where a number is wanted");
      return place.loaded;
    }
    instruction.fills.push_back({type->kind() == TypeKind::FloatType    ? Fill::Kind::kReal
                                 : type->kind() == TypeKind::TensorType ? Fill::Kind::kTensorOfNumber
                                                                        : Fill::Kind::kValue,
                                 false, position, place.slot});
    return {};
  }
  return plain(argument, type->kind());
}

IValue ArgumentMaker::plain(const Argument& argument, TypeKind wanted) const {
  const std::optional<at::Scalar> number = scalar(argument);
  switch (wanted) {
    case TypeKind::TensorType:
      if (number) return wrapped(*number);
      break;
    case TypeKind::NumberType:
      if (number) return IValue(*number);
      break;
    case TypeKind::FloatType:
      if (number) return number->toDouble();
      break;
    case TypeKind::BoolType:
      if (number) return number->toBool();
      break;
    case TypeKind::ComplexType:
      if (number) return number->toComplexDouble();
      break;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType:
      if (const auto* element = std::get_if<graph::ElementType>(&argument))
        return static_cast<std::int64_t>(scalar_type(*element));
      if (const auto* own = std::get_if<graph::Layout>(&argument)) return static_cast<std::int64_t>(layout(*own));
      if (const auto* format = std::get_if<graph::MemoryFormat>(&argument))
        return static_cast<std::int64_t>(memory_format(*format));
      if (number && number->isIntegral(/*includeBool=*/true)) return number->toLong();
      break;
    case TypeKind::StringType:
      if (const auto* text = std::get_if<std::string>(&argument)) return *text;
      break;
    case TypeKind::DeviceObjType:
      if (std::holds_alternative<graph::Device>(argument) || std::holds_alternative<std::string>(argument))
        return device_;
      break;
    default:
      break;
  }
  refuse(std::string("it is not of the kind that is wanted, ") + c10::typeKindToString(wanted));
}

IValue ArgumentMaker::list(const Argument& argument, const c10::Argument& formal, const c10::TypePtr& element,
                           std::uint32_t position, ModelInstruction& instruction) const {
  const auto count = static_cast<std::size_t>(formal.N().value_or(1));
  const bool of_optional = element->kind() == TypeKind::OptionalType;
  const TypeKind kind =
      of_optional ? element->expectRef<c10::OptionalType>().getElementType()->kind() : element->kind();
  if (kind == TypeKind::TensorType) {
    if (const auto* uses = std::get_if<graph::Uses>(&argument))
      return tensors(*uses, of_optional, position, instruction);
    if (const auto* none = std::get_if<std::vector<std::int64_t>>(&argument); none != nullptr && none->empty()) {
      return tensors({}, of_optional, position, instruction);
    }
  }
  if (kind == TypeKind::IntType || kind == TypeKind::SymIntType) {
    if (const auto* integers = std::get_if<std::vector<graph::IntegerOrUse>>(&argument)) {
      Fill fill{Fill::Kind::kIntegers, false, position};
      for (const graph::IntegerOrUse& each : *integers) {
        const auto* used = std::get_if<graph::Use>(&each);
        fill.slots.push_back(used == nullptr ? -1 : find_(used->value).slot);
        fill.fixed.emplace_back(used == nullptr ? std::get<std::int64_t>(each) : 0);
      }
      instruction.fills.push_back(std::move(fill));
      return {};
    }
    if (const auto* use = std::get_if<graph::Use>(&argument)) {
      instruction.fills.push_back({Fill::Kind::kIntegers, false, position, -1,
                                   std::vector<std::int32_t>(count, find_(use->value).slot),
                                   std::vector<IValue>(count, IValue(0))});
      return {};
    }
    if (const auto integers = numbers<std::int64_t>(argument, count)) return *integers;
  }
  if (kind == TypeKind::FloatType) {
    if (const auto reals = numbers<double>(argument, count)) return *reals;
  }
  if (kind == TypeKind::BoolType) {
    if (const auto* flags = std::get_if<std::vector<bool>>(&argument)) {
      c10::List<bool> result;
      for (const bool flag : *flags) result.push_back(flag);
      return result;
    }
  }
  if (kind == TypeKind::StringType) {
    if (const auto* texts = std::get_if<std::vector<std::string>>(&argument)) return *texts;
  }
  if (kind == TypeKind::NumberType) {
    if (const auto reals = numbers<double>(argument, count)) {
      const bool whole = !std::holds_alternative<std::vector<double>>(argument);
      c10::List<at::Scalar> result;
      for (const double real : *reals)
        result.push_back(whole ? at::Scalar(static_cast<std::int64_t>(real)) : at::Scalar(real));
      return result;
    }
  }
  refuse("it is not the list that is wanted, of " + element->str());
}

IValue ArgumentMaker::tensors(const graph::Uses& uses, bool optional, std::uint32_t position,
                              ModelInstruction& instruction) const {
  Fill fill{optional ? Fill::Kind::kOptionalTensors : Fill::Kind::kTensors, false, position};
  for (const graph::Use& use : uses) {
    const Place place = use.value == graph::kNoValue ? Place{} : find_(use.value);
    fill.slots.push_back(place.slot);
    fill.fixed.emplace_back(place.loaded.defined() ? IValue(place.loaded) : IValue());
  }
  instruction.fills.push_back(std::move(fill));
  return {};
}

}  // namespace stagecraft

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace stagecraft {

/// Calls `visit` for all tensors in a value.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) for_each_tensor(element, visit);
  }
}

/// Whether an operation of that schema writes to that argument.
inline bool changes_argument(const std::optional<c10::FunctionSchema>& schema, std::size_t index) {
  if (!schema || index >= schema->arguments().size()) return false;
  const c10::AliasInfo* alias = schema->arguments()[index].alias_info();
  return alias != nullptr && alias->isWrite();
}

/// Whether what an operation of that schema returns there is a view of an argument.
inline bool returns_view(const std::optional<c10::FunctionSchema>& schema, std::size_t index) {
  if (!schema || index >= schema->returns().size()) return false;
  const c10::AliasInfo* alias = schema->returns()[index].alias_info();
  return alias != nullptr && !alias->isWrite();
}

}  // namespace stagecraft

#pragma once

#include <functional>
#include <string>

#include "model_instruction.h"
#include "stagecraft/graph/program.h"

namespace stagecraft {

/// Makes an instruction's arguments from a node's, as the operator's schema wants them.
class ArgumentMaker {
 public:
  /// Where a value is: a tensor that is loaded, or a slot.
  struct Place {
    at::Tensor loaded;
    std::int32_t slot = -1;
  };
  using Find = std::function<Place(graph::ValueId)>;

  ArgumentMaker(const Find& find, at::Device device) : find_(find), device_(device) {}

  /// Throws InvalidArgument that names the argument.
  void make(const graph::Node& node, const c10::FunctionSchema& schema, ModelInstruction& instruction) const;
  /// The same for arithmetic on sizes, whose arguments have no schema.
  void make_numbers(const graph::Node& node, ModelInstruction& instruction) const;

 private:
  c10::IValue value(const graph::Argument& argument, const c10::Argument& formal, std::uint32_t position,
                    ModelInstruction& instruction) const;
  c10::IValue plain(const graph::Argument& argument, c10::TypeKind wanted) const;
  c10::IValue list(const graph::Argument& argument, const c10::Argument& formal, const c10::TypePtr& element,
                   std::uint32_t position, ModelInstruction& instruction) const;
  c10::IValue tensors(const graph::Uses& uses, bool optional, std::uint32_t position,
                      ModelInstruction& instruction) const;

  const Find& find_;
  at::Device device_;
};

}  // namespace stagecraft

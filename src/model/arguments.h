#pragma once

#include <functional>
#include <string>

#include "model_instruction.h"
#include "stagecraft/graph/program.h"

namespace stagecraft {

/// Converts a node's arguments to those of an instruction, as the operator's schema requires.
class ArgumentMaker {
 public:
  /// Where a value is: in a loaded tensor, or in a slot.
  struct Place {
    at::Tensor loaded;
    std::int32_t slot = -1;
  };
  using Find = std::function<Place(graph::ValueId)>;

  ArgumentMaker(const Find& find, at::Device device) : find_(find), device_(device) {}

  /// Throws InvalidArgument, which names the argument.
  void make(const graph::Node& node, const c10::FunctionSchema& schema, ModelInstruction& instruction) const;
  /// The same for arithmetic on sizes, whose arguments have no schema.
  void make_numbers(const graph::Node& node, ModelInstruction& instruction) const;
  /// The same for the operands of control flow: those with a true in `given` are passed, the bodies read the others.
  void make_operands(const graph::Node& node, const std::vector<bool>& given, ModelInstruction& instruction) const;
  /// A literal as it is, without a schema; none for lists.
  static c10::IValue literal(const graph::Argument& argument);

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

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "numbers.h"
#include "stagecraft/graph/program.h"

namespace stagecraft {

/// An argument, or a part of one, that is known only when the node runs.
struct Fill {
  enum class Kind : std::uint8_t {
    kValue,            ///< The value of the slot.
    kReal,             ///< A number, converted to double.
    kTensorOfNumber,   ///< A number as a tensor, which keeps the type promotion of a number.
    kTensors,          ///< A list of `slots`.
    kOptionalTensors,  ///< Like kTensors, none where a slot is -1.
    kIntegers,         ///< A list of integers: from `slots`, or from `fixed` where a slot is -1.
    kInBodies,         ///< The value of the slot, which bodies of the instruction read too.
  };

  Kind kind = Kind::kValue;
  bool last = false;  ///< The slot is not used afterwards: its value may be moved.
  std::uint32_t argument = 0;
  std::int32_t slot = -1;
  std::vector<std::int32_t> slots = {};
  std::vector<c10::IValue> fixed = {};  ///< In place of slots that are -1.
};

struct ControlFlow;

/// One node, ready to run without lookups.
struct ModelInstruction {
  enum class Kind : std::uint8_t { kOperator, kSize, kNumber, kControlFlow };

  Kind kind = Kind::kOperator;
  bool skipped_in_evaluation = false;
  std::optional<c10::OperatorHandle> operation = std::nullopt;
  NumberOperation number = nullptr;
  std::shared_ptr<const ControlFlow> control = nullptr;
  const graph::Node* source = nullptr;  ///< Null for an update of a buffer, and for a size. Belongs to the program.
  int node = 0;                         ///< Index of the source in its program or body.
  int context = 0;
  /// All arguments, in the order of the schema; `fills` replace some of them.
  std::vector<c10::IValue> arguments = {};
  std::vector<Fill> fills = {};
  /// Arguments that have another value in evaluation.
  std::vector<std::pair<std::uint32_t, c10::IValue>> in_evaluation = {};

  struct Result {
    bool list = false;
    std::vector<std::int32_t> slots;  ///< -1: unused.
  };
  std::vector<Result> results = {};
  /// Slots to free afterwards; without those whose value a fill moves.
  std::vector<std::int32_t> frees = {};
};

/// A graph that an instruction runs, on the slots of the stage. Slots of the bodies are used again in each iteration.
struct CompiledBody {
  std::vector<std::int32_t> formals;  ///< By argument of the instruction, without a predicate; -1: not given.
  std::vector<ModelInstruction> instructions;
  struct Output {
    std::int32_t slot = -1;
    c10::IValue fixed = {};  ///< If there is no slot.
  };
  std::vector<Output> outputs;
  std::vector<std::int32_t> frees;  ///< Slots of the outputs that are the body's own.
  std::vector<std::size_t> unused;  ///< Arguments of the instruction that nothing in the body uses.
};

/// What a node of control flow runs. The arguments of the instruction are those of the node.
struct ControlFlow {
  enum class Kind : std::uint8_t { kBranch, kLoop, kScan };  ///< A map is a scan that carries nothing.

  Kind kind = Kind::kBranch;
  std::vector<CompiledBody> bodies;
  std::size_t carried = 0;
  std::size_t sliced = 0;
};

}  // namespace stagecraft

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "numbers.h"

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
  };

  Kind kind = Kind::kValue;
  bool last = false;  ///< The slot is not used afterwards: its value may be moved.
  std::uint32_t argument = 0;
  std::int32_t slot = -1;
  std::vector<std::int32_t> slots = {};
  std::vector<c10::IValue> fixed = {};  ///< In place of slots that are -1.
};

/// One node, ready to run without lookups.
struct ModelInstruction {
  enum class Kind : std::uint8_t { kOperator, kSize, kNumber };

  Kind kind = Kind::kOperator;
  bool skipped_in_evaluation = false;
  std::optional<c10::OperatorHandle> operation = std::nullopt;
  NumberOperation number = nullptr;
  int node = 0;
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

}  // namespace stagecraft

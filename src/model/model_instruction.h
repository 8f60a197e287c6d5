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
    kValue,            ///< The slot as it is.
    kReal,             ///< A number, as a real one.
    kTensorOfNumber,   ///< A number, as a tensor that takes part in type promotion as a number does.
    kTensors,          ///< A list of `slots`.
    kOptionalTensors,  ///< The same, none where a slot is -1.
    kIntegers,         ///< A list of numbers: of `slots`, or of `fixed` where a slot is -1.
  };

  Kind kind = Kind::kValue;
  bool last = false;  ///< Nobody needs the slot afterwards.
  std::uint32_t argument = 0;
  std::int32_t slot = -1;
  std::vector<std::int32_t> slots = {};
  std::vector<c10::IValue> fixed = {};  ///< In place of slots that are -1.
};

/// One node, ready to run: nothing is looked up any more.
struct ModelInstruction {
  enum class Kind : std::uint8_t { kOperator, kSize, kNumber };

  Kind kind = Kind::kOperator;
  bool skipped_in_evaluation = false;
  std::optional<c10::OperatorHandle> operation = std::nullopt;
  NumberOperation number = nullptr;
  int node = 0;
  int context = 0;
  /// All of them, in the order of the schema; what fills name is replaced.
  std::vector<c10::IValue> arguments = {};
  std::vector<Fill> fills = {};
  /// Arguments that are different in evaluation.
  std::vector<std::pair<std::uint32_t, c10::IValue>> in_evaluation = {};

  struct Result {
    bool list = false;
    std::vector<std::int32_t> slots;  ///< -1: not wanted.
  };
  std::vector<Result> results = {};
  /// Slots that are not needed afterwards, those that fills take away excepted.
  std::vector<std::int32_t> frees = {};
};

}  // namespace stagecraft

#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "held_memory.h"

/// Memory that a capture has made and that others have, such as a mask that a module keeps for later.
namespace stagecraft {

/// What somebody has kept, such as a number of the last step that a module has for others to read, and what a graph
/// writes in its place.
struct MovedOut {
  WeakMemory owner;
  at::Tensor left;  ///< Bytes in the memory that it had, which the graph goes on to use.

  /// Whether somebody still has it, as large as it was.
  [[nodiscard]] bool has_owner() const;
  /// Copies what the graph has written, if there is still an owner.
  void follow() const;
};

/// Whether something that was made has the same bytes. Waits for the device.
bool is_among(const c10::Storage& memory, const std::vector<WeakMemory>& made);

/// Gives what is still owned memory of its own, with the same data.
std::vector<MovedOut> move_out(const std::vector<WeakMemory>& made);

/// Makes what was never computed, and is still owned, numbers that nobody takes for results.
void fill_with_nan(const std::vector<WeakMemory>& made);

}  // namespace stagecraft

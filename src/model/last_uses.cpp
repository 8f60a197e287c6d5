#include "last_uses.h"

#include <map>
#include <set>

namespace stagecraft {
namespace {

/// Calls `visit` with each slot that the instruction reads, once per use.
template <typename Visit>
void for_each_use(const ModelInstruction& instruction, const Visit& visit) {
  for (const Fill& fill : instruction.fills) {
    if (fill.slot >= 0) visit(fill.slot);
    for (const std::int32_t slot : fill.slots) {
      if (slot >= 0) visit(slot);
    }
  }
}

void free_slots(ModelInstruction& instruction, const std::vector<bool>& ends) {
  std::map<std::int32_t, int> uses;
  for_each_use(instruction, [&](std::int32_t slot) { ++uses[slot]; });
  std::set<std::int32_t> frees;
  for (Fill& fill : instruction.fills) {
    const bool ends_here = fill.slot >= 0 && ends[static_cast<std::size_t>(fill.slot)];
    fill.last = ends_here && uses[fill.slot] == 1 && fill.kind != Fill::Kind::kInBodies;
    if (ends_here && !fill.last) frees.insert(fill.slot);
    for (const std::int32_t slot : fill.slots) {
      if (slot >= 0 && ends[static_cast<std::size_t>(slot)]) frees.insert(slot);
    }
  }
  for (ModelInstruction::Result& made : instruction.results) {
    for (std::int32_t& slot : made.slots) {
      if (slot >= 0 && ends[static_cast<std::size_t>(slot)]) slot = -1;  // unused result
    }
  }
  instruction.frees.assign(frees.begin(), frees.end());
}

}  // namespace

std::vector<std::ptrdiff_t> free_after_last_use(std::vector<ModelInstruction>& instructions,
                                                const std::vector<std::int32_t>& kept, const std::vector<bool>& own) {
  std::vector<std::ptrdiff_t> last(own.size(), kNeverUsed);
  const auto note = [&](std::int32_t slot, std::size_t at) {
    if (slot >= 0) last[static_cast<std::size_t>(slot)] = static_cast<std::ptrdiff_t>(at);
  };
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    for_each_use(instructions[i], [&](std::int32_t slot) { note(slot, i); });
    for (const ModelInstruction::Result& made : instructions[i].results) {
      for (const std::int32_t slot : made.slots) note(slot, i);
    }
  }
  for (const std::int32_t slot : kept) note(slot, instructions.size());
  std::vector<bool> ends(own.size(), false);
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    std::vector<std::int32_t> here;
    const auto look_at = [&](std::int32_t slot) {
      const auto at = static_cast<std::size_t>(slot);
      if (slot < 0 || !own[at] || last[at] != static_cast<std::ptrdiff_t>(i)) return;
      ends[at] = true;
      here.push_back(slot);
    };
    for_each_use(instructions[i], look_at);
    for (const ModelInstruction::Result& made : instructions[i].results) {
      for (const std::int32_t slot : made.slots) look_at(slot);
    }
    free_slots(instructions[i], ends);
    for (const std::int32_t slot : here) ends[static_cast<std::size_t>(slot)] = false;
  }
  return last;
}

}  // namespace stagecraft

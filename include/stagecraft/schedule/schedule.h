#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/placement.h"

namespace stagecraft {

/// What one rank does, in order. Idle slots are part of it: they line the ranks up when a schedule is drawn.
using Row = std::vector<Action>;

/// Most ranks, and most slots (idle ones included: 2 GiB of actions), that a file or a request may have. More is
/// refused before memory is taken for it.
inline constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxSlots = std::int64_t{1} << 27;

/// A schedule is data: one row per rank, the map of stages to ranks, and the number of microbatches. Compute-only (F,
/// B, I, W, overlaps, idle) as generators make it, or lowered (communication and sharding actions added) as passes
/// leave it. It may hold anything; `verify` says whether it can run.
struct Schedule {
  std::string name;
  Placement placement;
  int microbatches = 0;
  std::vector<Row> rows;

  /// Finds placement and number of microbatches from the rows themselves: a stage lives where it computes. Throws
  /// ScheduleError when a stage computes on two ranks, when stage numbers have gaps, or when there is no action at all.
  static Schedule from_rows(std::vector<Row> rows, std::string name = {});

  [[nodiscard]] int ranks() const { return static_cast<int>(rows.size()); }
  [[nodiscard]] int stages() const { return placement.stages(); }
  /// Whether any action is not a compute action.
  [[nodiscard]] bool is_lowered() const;
  /// Whether there is any SEND or RECV.
  [[nodiscard]] bool communicates() const;
  /// Actions that are not idle; an overlap is one.
  [[nodiscard]] std::int64_t actions() const;
  /// Slots of all rows, idle ones included.
  [[nodiscard]] std::size_t slots() const;
  /// Idle slots standing in the rows.
  [[nodiscard]] std::int64_t idle_slots() const;

  bool operator==(const Schedule& other) const {
    return placement == other.placement && microbatches == other.microbatches && rows == other.rows;
  }
};

}  // namespace stagecraft

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/placement.h"

namespace stagecraft {

/// One rank's actions in order, including idle slots, which align the ranks when a schedule is drawn.
using Row = std::vector<Action>;

/// Whether there is any backward.
bool trains(const Row& row);

/// Limits on the ranks and slots of a schedule file or request; slots include idle ones (2 GiB of actions). Larger
/// input is refused before memory is allocated for it.
inline constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxSlots = std::int64_t{1} << 27;

/// A schedule is data: one row per rank, the map of stages to ranks, and the number of microbatches. Generators make
/// compute-only schedules (F, B, I, W, overlaps, idle); passes lower them by adding communication and sharding actions.
/// A Schedule need not be valid; `verify` says whether it can run.
struct Schedule {
  std::string name;
  Placement placement;
  int microbatches = 0;
  std::vector<Row> rows;

  /// Derives the placement and the number of microbatches from the rows: a stage is on the rank that computes it.
  /// Throws ScheduleError when a stage computes on two ranks, when stage numbers have gaps, or when there is no action
  /// at all.
  static Schedule from_rows(std::vector<Row> rows, std::string name = {});

  [[nodiscard]] int ranks() const { return static_cast<int>(rows.size()); }
  [[nodiscard]] int stages() const { return placement.stages(); }
  /// Whether any action is not a compute action.
  [[nodiscard]] bool is_lowered() const;
  /// Whether there is any backward.
  [[nodiscard]] bool trains() const;
  /// Whether there is any SEND or RECV.
  [[nodiscard]] bool communicates() const;
  /// Number of actions that are not idle; an overlap counts once.
  [[nodiscard]] std::int64_t actions() const;
  /// Number of slots in all rows, including idle ones.
  [[nodiscard]] std::size_t slots() const;
  /// Number of idle slots in all rows.
  [[nodiscard]] std::int64_t idle_slots() const;

  bool operator==(const Schedule& other) const {
    return placement == other.placement && microbatches == other.microbatches && rows == other.rows;
  }
};

}  // namespace stagecraft

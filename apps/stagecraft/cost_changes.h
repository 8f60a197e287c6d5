#pragma once

#include <string>

#include "stagecraft/sim/cost_file.h"

/// Changes of costs after they were read, and memory limits with units.
namespace stagecraft::cli {

/// Each is used instead of what the file says; 0 or empty keeps that.
struct CostChanges {
  int replicas = 0;
  std::string shard;      ///< "none", "optimizer", "gradients" or "parameters".
  std::string recompute;  ///< "none" or "all".
};

/// Throws InvalidArgument for what the costs do not allow: something to share without replicas, recompute without the
/// size of inputs; and for an unknown name.
void apply(const CostChanges& changes, Costs& costs);
/// The same for costs by stage or by layer.
void apply(const CostChanges& changes, CostFile& file);

/// A memory limit as the user gives it: "16" in the unit of the costs, or "80GiB".
struct MemoryLimit {
  std::string text;
  double value = 0;  ///< In bytes if it has a unit.
  bool has_unit = false;

  /// Throws InvalidArgument for a limit in bytes where memory is in another unit; `name` is the option's.
  [[nodiscard]] double in_unit_of(const Costs& costs, const std::string& name) const;
};
/// Throws InvalidArgument for a text that is not a number from 0 up, with or without a unit.
MemoryLimit to_memory_limit(const std::string& text);

}  // namespace stagecraft::cli

#pragma once

#include <string>

#include "stagecraft/sim/cost_file.h"

namespace CLI {
class App;
}

/// Options that change the costs a command has read, and memory limits with units.
namespace stagecraft::cli {

/// --replicas, --shard and --recompute, each instead of what the file says.
class CostOptions {
 public:
  void add_options(CLI::App& parser);
  /// Throws InvalidArgument for what the costs do not allow: something to share without replicas, recompute without the
  /// size of inputs.
  void apply(Costs& costs) const;
  void apply(CostFile& file) const;

 private:
  int replicas_ = 0;
  std::string shard_;
  std::string recompute_;
};

/// A memory limit as the user gives it: "16" in the unit of the costs, or "80GiB".
class MemoryLimit {
 public:
  void add_option(CLI::App& parser);
  /// 0 if it is not given. Throws Failure for a limit in bytes where memory is in another unit.
  [[nodiscard]] double in_unit_of(const Costs& costs) const;

 private:
  std::string text_;
  double value_ = 0;
  bool has_unit_ = false;
};

}  // namespace stagecraft::cli

#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "stagecraft/schedule/schedule.h"

/// The known schedules, by name. Each is one file in `src/schedule/generators/` and one line in `registry.cpp`.
namespace stagecraft {

/// The parameters of a generated schedule.
struct Shape {
  int ranks = 1;
  /// 0 means the generator's default.
  int stages_per_rank = 0;
  int microbatches = 1;
  /// Most microbatches whose activations one rank may hold at once; 0 means no limit. Only generators with
  /// `takes_memory_limit` accept a limit.
  int memory_limit = 0;
};

struct Generator {
  std::string_view name;
  /// "linear", "loop" or "v".
  std::string_view placement;
  int min_stages_per_rank;
  int max_stages_per_rank;
  int default_stages_per_rank;
  bool takes_memory_limit;
  /// Formula of the idle time, in p, m, v and the times F, B (or I and W) of one stage.
  std::string_view bubble;
  /// Formula of the most microbatch-stage activations a rank holds at once.
  std::string_view memory;
  std::string_view summary;
  /// Takes a shape already checked against the fields above.
  Schedule (*make)(const Shape&);
};

/// In the order of `stagecraft list`.
std::span<const Generator* const> generators();

/// Ignores case, '-' and '_' in the name. Throws InvalidArgument that lists the known names.
const Generator& find_generator(std::string_view name);

/// Accepts any ranks >= 1 and microbatches >= 1. Throws InvalidArgument for a shape that the generator does not support
/// or that has more than kMaxSlots slots.
Schedule make_schedule(std::string_view name, const Shape& shape);

}  // namespace stagecraft

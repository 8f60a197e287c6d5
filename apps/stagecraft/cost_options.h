#pragma once

#include "cost_changes.h"

namespace CLI {
class App;
}

/// Options that change the costs a command has read.
namespace stagecraft::cli {

/// --replicas, --shard and --recompute. The changes must outlive the call of `parse`, here and below.
void add_cost_changes(CLI::App& parser, CostChanges& changes);

/// --memory-limit.
void add_memory_limit(CLI::App& parser, MemoryLimit& limit);

}  // namespace stagecraft::cli

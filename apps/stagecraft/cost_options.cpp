#include "cost_options.h"

#include <CLI/CLI.hpp>

#include "options.h"
#include "stagecraft/core/error.h"

namespace stagecraft::cli {

void add_cost_changes(CLI::App& parser, CostChanges& changes) {
  add_count(parser, "--replicas", changes.replicas, "Pipelines side by side (default: as the costs say)");
  add_choice(parser, "--shard", changes.shard, {"none", "optimizer", "gradients", "parameters"},
             "What replicas share instead of holding copies (default: as the costs say)");
  add_choice(parser, "--recompute", changes.recompute, {"none", "all"},
             "Stages that compute their activations again (default: as the costs say)");
}

void add_memory_limit(CLI::App& parser, MemoryLimit& limit) {
  const auto check = [&limit](const std::string& text) {
    try {
      limit = to_memory_limit(text);
    } catch (const InvalidArgument& error) {
      throw CLI::ValidationError("--memory-limit", error.what());
    }
  };
  parser
      .add_option_function<std::string>("--memory-limit", check,
                                        "Most memory of a rank, in the unit of the costs, or such as 80GiB")
      ->type_name(std::string(kNumberType));
}

}  // namespace stagecraft::cli

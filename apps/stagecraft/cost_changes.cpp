#include "cost_changes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "stagecraft/core/error.h"
#include "stagecraft/sim/what_if.h"

namespace stagecraft::cli {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 9> kUnits = {{{"B", 1},
                                         {"KiB", 1024.0},
                                         {"MiB", 1048576.0},
                                         {"GiB", 1073741824.0},
                                         {"TiB", 1099511627776.0},
                                         {"KB", 1e3},
                                         {"MB", 1e6},
                                         {"GB", 1e9},
                                         {"TB", 1e12}}};

Shard shard_of(const std::string& name) {
  for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
    if (shard_name(shard) == name) return shard;
  }
  throw InvalidArgument(
      fmt::format("'{}' is nothing that replicas share: give none, optimizer, gradients or parameters", name));
}

}  // namespace

void apply(const CostChanges& changes, Costs& costs) {
  if (changes.replicas > 0 || !changes.shard.empty()) {
    costs = with_replicas(costs, changes.replicas > 0 ? changes.replicas : costs.replicas,
                          changes.shard.empty() ? costs.shard : shard_of(changes.shard));
  }
  if (changes.recompute.empty()) return;
  if (changes.recompute != "all" && changes.recompute != "none") {
    throw InvalidArgument(fmt::format("'{}' is not what can be computed again: give none or all", changes.recompute));
  }
  costs = with_recompute(costs, changes.recompute == "all");
}

void apply(const CostChanges& changes, CostFile& file) {
  if (file.layers.empty()) return apply(changes, file.costs);
  // The costs of layers, as if they were stages.
  Costs all = file.costs;
  all.stages.clear();
  for (const Layer& layer : file.layers) all.stages.push_back(layer.costs);
  apply(changes, all);
  for (std::size_t i = 0; i < file.layers.size(); ++i) file.layers[i].costs = all.stages[i];
  all.stages = std::move(file.costs.stages);
  file.costs = std::move(all);
}

MemoryLimit to_memory_limit(const std::string& text) {
  MemoryLimit limit{.text = text};
  const char* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, limit.value);
  const std::string_view unit(after, static_cast<std::size_t>(end - after));
  const auto known = std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& one) { return one.name == unit; });
  if (error != std::errc() || (!unit.empty() && known == kUnits.end()) || !std::isfinite(limit.value) ||
      limit.value < 0) {
    throw InvalidArgument(
        fmt::format("'{}' is not a number from 0 up, with a unit such as GiB if memory is in bytes", text));
  }
  limit.has_unit = !unit.empty();
  if (limit.has_unit) limit.value *= known->bytes;
  return limit;
}

double MemoryLimit::in_unit_of(const Costs& costs, const std::string& name) const {
  if (has_unit && !costs.memory_in_bytes) {
    throw InvalidArgument(
        fmt::format("{} {} is in bytes, but memory in the costs is in a unit of its own: give the "
                    "limit in that unit, or, if all memory there is in bytes, set \"memory_unit\": \"bytes\"",
                    name, text));
  }
  return value;
}

}  // namespace stagecraft::cli

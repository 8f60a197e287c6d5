#include "cost_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "failure.h"
#include "options.h"
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
  for (const Shard shard : {Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
    if (shard_name(shard) == name) return shard;
  }
  return Shard::kNone;
}

}  // namespace

void CostOptions::add_options(CLI::App& parser) {
  add_count(parser, "--replicas", replicas_, "Pipelines side by side (default: as the costs say)");
  add_choice(parser, "--shard", shard_, {"none", "optimizer", "gradients", "parameters"},
             "What replicas share instead of holding copies (default: as the costs say)");
  add_choice(parser, "--recompute", recompute_, {"none", "all"},
             "Stages that compute their activations again (default: as the costs say)");
}

void CostOptions::apply(Costs& costs) const {
  if (replicas_ > 0 || !shard_.empty()) {
    costs = with_replicas(costs, replicas_ > 0 ? replicas_ : costs.replicas,
                          shard_.empty() ? costs.shard : shard_of(shard_));
  }
  if (!recompute_.empty()) costs = with_recompute(costs, recompute_ == "all");
}

void CostOptions::apply(CostFile& file) const {
  if (file.layers.empty()) return apply(file.costs);
  // The costs of layers, as if they were stages.
  Costs all = file.costs;
  all.stages.clear();
  for (const Layer& layer : file.layers) all.stages.push_back(layer.costs);
  apply(all);
  for (std::size_t i = 0; i < file.layers.size(); ++i) file.layers[i].costs = all.stages[i];
  all.stages = std::move(file.costs.stages);
  file.costs = std::move(all);
}

void MemoryLimit::add_option(CLI::App& parser) {
  const auto check = [this](const std::string& text) {
    const char* end = text.data() + text.size();
    const auto [after, error] = std::from_chars(text.data(), end, value_);
    const std::string_view unit(after, static_cast<std::size_t>(end - after));
    const auto known = std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& one) { return one.name == unit; });
    if (error != std::errc() || (!unit.empty() && known == kUnits.end()) || !std::isfinite(value_) || value_ < 0) {
      throw CLI::ValidationError(
          "--memory-limit",
          fmt::format("'{}' is not a number from 0 up, with a unit such as GiB if memory is in bytes", text));
    }
    has_unit_ = !unit.empty();
    if (has_unit_) value_ *= known->bytes;
    text_ = text;
  };
  parser
      .add_option_function<std::string>("--memory-limit", check,
                                        "Most memory of a rank, in the unit of the costs, or such as 80GiB")
      ->type_name(std::string(kNumberType));
}

double MemoryLimit::in_unit_of(const Costs& costs) const {
  if (has_unit_ && !costs.memory_in_bytes) {
    throw Failure(
        kUnusable,
        fmt::format("--memory-limit {} is in bytes, but memory in the costs is in a unit of its own: give the "
                    "limit in that unit, or, if all memory there is in bytes, set \"memory_unit\": \"bytes\"",
                    text_));
  }
  return value_;
}

}  // namespace stagecraft::cli

#include "request.h"

#include <fmt/format.h>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft::page {
namespace {

void check_ranks(std::int64_t ranks) {
  if (ranks <= kMostRanks) return;
  throw InvalidArgument(
      fmt::format("the page draws at most {} ranks, and these are {}: use fewer, or the command", kMostRanks, ranks));
}

/// Refuses a shape before it is made: a generator of this size would take all memory of the page.
void check_size(const Json& source, int stages_per_rank) {
  check_ranks(source.at("ranks").get<int>());
  const double actions = 3.0 * source.at("ranks").get<int>() * stages_per_rank * source.at("microbatches").get<int>();
  if (actions <= static_cast<double>(kMostActions)) return;
  throw InvalidArgument(fmt::format(
      "{} ranks with {} stages each and {} microbatches are about {:.0f} actions, and the page shows at most {}: "
      "use fewer, or the command `stagecraft schedule`",
      source.at("ranks").get<int>(), stages_per_rank, source.at("microbatches").get<int>(), actions, kMostActions));
}

PlacementChoice placement_of(const std::string& name) {
  if (name == "linear") return PlacementChoice::kLinear;
  if (name == "loop") return PlacementChoice::kLoop;
  if (name == "v") return PlacementChoice::kV;
  return PlacementChoice::kAny;
}

}  // namespace

std::string file_of(const Json& source) { return source.value("file", source.value("name", std::string("schedule"))); }

std::vector<Row> rows_of(const Json& source) {
  std::vector<Row> rows = parse_csv(source.at("csv").get_ref<const std::string&>());
  if (rows.empty()) throw InvalidArgument("it has no rows: a schedule has one line per rank, such as 0F0,0B0");
  check_ranks(static_cast<std::int64_t>(rows.size()));
  std::int64_t actions = 0;
  for (const Row& row : rows) actions += static_cast<std::int64_t>(row.size());
  if (actions > kMostActions) {
    throw InvalidArgument(
        fmt::format("it has {} slots, and the page shows at most {}: use the command", actions, kMostActions));
  }
  return rows;
}

Schedule schedule_of(const Json& source) {
  if (source.contains("csv")) return Schedule::from_rows(rows_of(source), file_of(source));
  const std::string name = source.at("name").get<std::string>();
  const Shape shape{.ranks = source.at("ranks").get<int>(),
                    .stages_per_rank = source.value("stages_per_rank", 0),
                    .microbatches = source.at("microbatches").get<int>(),
                    .memory_limit = source.value("microbatch_limit", 0)};
  const Generator& generator = find_generator(name);
  check_size(source, shape.stages_per_rank > 0 ? shape.stages_per_rank : generator.default_stages_per_rank);
  return make_schedule(name, shape);
}

Costs costs_of(const Json& request) { return parse_costs(request.at("costs").get_ref<const std::string&>()); }

PlanRequest plan_request_of(const Json& request) {
  PlanRequest plan;
  plan.ranks = request.at("ranks").get<int>();
  plan.microbatches = request.at("microbatches").get<int>();
  plan.costs = costs_of(request);
  plan.memory_limit = request.value("memory_limit", 0.0);
  plan.placement = placement_of(request.value("placement", std::string("any")));
  plan.stages_per_rank = request.value("stages_per_rank", 0);
  plan.effort = request.value("effort", 1.0);
  plan.seed = request.value("seed", std::uint64_t{0});
  plan.time_budget = 1e9;
  plan.threads = 1;
  return plan;
}

}  // namespace stagecraft::page

#pragma once

#include <string>

#include "report_text.h"
#include "stagecraft/plan/planner.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/cost_file.h"

/// What the page asks for, read from JSON.
namespace stagecraft::page {

using cli::Json;

/// The page holds a schedule several times and draws every action: larger ones are for the command.
inline constexpr std::int64_t kMostActions = 600'000;
inline constexpr int kMostRanks = 1024;

/// The schedule of {"csv": TEXT, "file": NAME} or of {"name": "1F1B", "ranks": 4, "stages_per_rank": 1, "microbatches":
/// 8}. Throws as parse_csv, Schedule::from_rows and make_schedule do, and InvalidArgument above kMostActions.
Schedule schedule_of(const Json& source);

/// The rows of {"csv": TEXT}. Throws ParseError, and InvalidArgument when there are none or above kMostActions.
std::vector<Row> rows_of(const Json& source);

/// The costs of the text under "costs". Throws InvalidArgument with one line per problem.
Costs costs_of(const Json& request);

/// The plan of {"ranks", "microbatches", "stages_per_rank", "placement", "memory_limit", "costs", "effort", "seed"}.
/// Its search ends by itself, never by the clock.
PlanRequest plan_request_of(const Json& request);

/// The name of the schedule's file in reports.
std::string file_of(const Json& source);

}  // namespace stagecraft::page

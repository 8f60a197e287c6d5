// Calls about one schedule: its times and memory, its verdict, its files, and a change of its order.

#include <filesystem>
#include <sstream>

#include "calls.h"
#include "check_report.h"
#include "list_report.h"
#include "picture.h"
#include "simulation_report.h"
#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/view/render.h"

namespace stagecraft::page {
namespace {

Json facts_of(const Schedule& schedule) {
  Json stages = Json::array();
  for (const RankId rank : schedule.placement.ranks_of_stages()) stages.push_back(rank.value);
  return {{"ranks", schedule.ranks()},
          {"stages", schedule.stages()},
          {"microbatches", schedule.microbatches},
          {"placement", schedule.placement.style()},
          {"rank_of_stage", std::move(stages)},
          {"actions", schedule.actions()},
          {"lowered", schedule.is_lowered()}};
}

/// Null where no bound is known: schedules without backwards, limits that no schedule keeps.
Json bound_of(const Schedule& schedule, const Costs& costs, double memory_limit) {
  if (!schedule.trains()) return {};
  try {
    return span_lower_bound(costs, schedule.placement, schedule.microbatches, memory_limit);
  } catch (const InvalidArgument&) {
    return {};
  }
}

cli::CheckReport examined(const Json& source) {
  return cli::examine(file_of(source), rows_of(source), {std::begin(kCommModels), std::end(kCommModels)});
}

/// The report, and the lines that the command prints for a refused schedule.
Json verdict_json(const cli::CheckReport& report) {
  Json json = {{"report", cli::to_json(report)}, {"refusal", nullptr}};
  if (const Refusal* refusal = report.judgement.refusal(report.models)) {
    const cli::Failure failure = report.judgement.failure(report.file, *refusal);
    json["refusal"] = {{"message", cli::printable(failure.what())}, {"details", failure.details()}};
    json["cycle"] = cli::cycle_json(refusal->cycle);
  }
  return json;
}

}  // namespace

Reply list(const Json&) {
  Reply reply;
  reply.json = cli::list_json();
  return reply;
}

Reply show(const Json& request) {
  const Json& source = request.at("source");
  Reply reply;
  if (source.contains("csv")) {
    const cli::CheckReport report = examined(source);
    reply.json["verdict"] = verdict_json(report);
    if (report.judgement.verdict.fault) {
      add_slots(reply, rows_of(source));
      return reply;
    }
  }
  const Schedule schedule = schedule_of(source);
  const Costs costs = costs_of(request);
  const double limit = request.value("memory_limit", 0.0);
  add_simulation(reply, schedule, costs);
  reply.json["facts"] = facts_of(schedule);
  reply.json["lower_bound"] = bound_of(schedule, costs, limit);
  if (!source.contains("csv")) reply.json["csv"] = to_csv(schedule);
  return reply;
}

Reply compare(const Json& request) {
  Reply reply;
  Json& rows = reply.json["rows"] = Json::array();
  for (const Json& item : request.at("items")) {
    try {
      const Schedule schedule = schedule_of(item.at("source"));
      Json row = {{"facts", {{"stages", schedule.stages()}, {"placement", schedule.placement.style()}}}};
      cli::add_outcome(row, simulate(schedule, costs_of(item)));
      rows.push_back(std::move(row));
    } catch (const Error& error) {
      rows.push_back({{"error", error.what()}});
    }
  }
  return reply;
}

Reply check(const Json& request) {
  const Json& source = request.at("source");
  const cli::CheckReport report = examined(source);
  Reply reply;
  reply.json = verdict_json(report);
  std::vector<Row> rows = rows_of(source);
  if (report.judgement.of_lowered_copy) {
    Schedule copy = Schedule::from_rows(std::move(rows));
    send_recv(copy);
    rows = std::move(copy.rows);
  }
  add_slots(reply, rows);
  return reply;
}

Reply write(const Json& request) {
  const Json& source = request.at("source");
  const std::string format = request.at("format").get<std::string>();
  cli::SimulationReport report;
  report.file = file_of(source);
  report.schedule = schedule_of(source);
  report.schedule.name = cli::printable(std::filesystem::path(report.file).stem().string());
  std::ostringstream out;
  if (format == "csv") {
    write_csv(out, report.schedule);
  } else {
    report.costs = costs_of(request);
    report.simulation = simulate(report.schedule, report.costs, {.keep_times = true, .keep_memory = true});
    report.path = critical_path(report.schedule, report.simulation);
    if (format == "svg") write_simulation_svg(out, report.schedule, report.simulation);
    if (format == "trace") write_simulation_trace(out, report.schedule, report.simulation);
    if (format == "table") cli::write_report(out, report);
    if (format == "json") out << cli::to_json(report).dump(2) << '\n';
  }
  Reply reply;
  reply.json["text"] = out.str();
  return reply;
}

Reply move(const Json& request) {
  Schedule schedule;
  schedule.rows =
      request.at("source").contains("csv") ? rows_of(request.at("source")) : schedule_of(request.at("source")).rows;
  const auto rank = request.at("rank").get<std::size_t>();
  const auto from = request.at("from").get<std::size_t>();
  const auto to = request.at("to").get<std::size_t>();
  Row& row = schedule.rows.at(rank);
  if (from >= row.size() || to > row.size()) throw InvalidArgument("there is no such slot");
  const Action moved = row[from];
  row.insert(row.begin() + static_cast<std::ptrdiff_t>(to), moved);
  row.erase(row.begin() + static_cast<std::ptrdiff_t>(from + (to <= from ? 1 : 0)));
  // Only the order counts now: idle slots would show times of the schedule before the move.
  for (Row& one : schedule.rows) std::erase_if(one, [](const Action& action) { return action.is_idle(); });
  Reply reply;
  reply.json["csv"] = to_csv(schedule);
  return reply;
}

Reply costs(const Json& request) {
  Reply reply;
  reply.json["text"] = costs_to_json(parse_costs(request.at("text").get_ref<const std::string&>()));
  return reply;
}

}  // namespace stagecraft::page

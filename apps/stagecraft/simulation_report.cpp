#include "simulation_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "printable.h"
#include "stagecraft/schedule/action_text.h"

namespace stagecraft::cli {
namespace {

using Json = nlohmann::ordered_json;

void line(std::ostream& out, std::string_view label, std::string_view value) {
  fmt::print(out, "{:<16} {}\n", label, value);
}

std::string percent(double part) { return fmt::format("{:.2f}%", 100 * part); }

Json peak_json(const Simulation& simulation) {
  Json per_rank = Json::array();
  for (const RankOutcome& rank : simulation.ranks) per_rank.push_back(rank.peak_memory);
  return {{"max", simulation.peak_memory()}, {"per_rank", per_rank}};
}

Json summary_json(const SimulationReport& report) {
  const Simulation& s = report.simulation;
  return {{"file", printable(report.file)},
          {"ranks", report.schedule.ranks()},
          {"stages", report.schedule.stages()},
          {"microbatches", report.schedule.microbatches},
          {"makespan", s.makespan},
          {"span", s.span},
          {"bubble_makespan", s.bubble_makespan()},
          {"bubble_span", s.bubble_span()},
          {"peak", peak_json(s)}};
}

}  // namespace

void write_report(std::ostream& out, const SimulationReport& report) {
  const Simulation& s = report.simulation;
  line(out, "file", printable(report.file));
  line(out, "makespan", fmt::format("{:.6g}, bubble {}", s.makespan, percent(s.bubble_makespan())));
  line(out, "span",
       fmt::format("{:.6g}, bubble {} (largest of a rank, first F to last W)", s.span, percent(s.bubble_span())));
  line(out, "peak memory", fmt::format("{:.6g}", s.peak_memory()));
  const CriticalSummary critical = summarize(report.path, report.schedule.ranks());
  line(out, "critical path",
       fmt::format("{} actions, compute {:.6g}, messages {:.6g}", report.path.size(), critical.compute,
                   critical.messages));
  if (report.jitter) {
    line(out, "jitter",
         fmt::format("{} runs: makespan median {:.6g}, 95th percentile {:.6g}", report.jitter->runs,
                     report.jitter->median_makespan, report.jitter->p95_makespan));
  }
  fmt::print(out, "\n{:>4}  {:>10}  {:>10}  {:>10}  {:>7}  {:>10}  {:>14}\n", "RANK", "SPAN", "BUSY", "IDLE", "BUBBLE",
             "PEAK", "ON CRITICAL");
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    const RankOutcome& rank = s.ranks[r];
    const double idle = rank.span() - rank.busy;
    fmt::print(out, "{:>4}  {:>10.6g}  {:>10.6g}  {:>10.6g}  {:>7}  {:>10.6g}  {:>14.6g}\n", r, rank.span(), rank.busy,
               std::max(idle, 0.0), percent(rank.span() > 0 ? std::max(idle, 0.0) / rank.span() : 0), rank.peak_memory,
               critical.by_rank[r]);
  }
}

void write_json_report(std::ostream& out, const SimulationReport& report) {
  Json json = summary_json(report);
  json["per_rank"] = Json::array();
  for (const RankOutcome& rank : report.simulation.ranks) {
    json["per_rank"].push_back({{"first_start", rank.first_start},
                                {"last_end", rank.last_end},
                                {"span", rank.span()},
                                {"busy", rank.busy},
                                {"end", rank.end},
                                {"peak_memory", rank.peak_memory}});
  }
  const CriticalSummary critical = summarize(report.path, report.schedule.ranks());
  json["critical_path"] = {{"compute", critical.compute}, {"messages", critical.messages}, {"actions", Json::array()}};
  for (const CriticalAction& at : report.path) {
    json["critical_path"]["actions"].push_back({{"rank", at.rank.value},
                                                {"action", to_text(at.action)},
                                                {"start", at.start},
                                                {"end", at.end},
                                                {"after_message", at.after_message}});
  }
  json["jitter"] = nullptr;
  if (report.jitter) {
    json["jitter"] = {{"runs", report.jitter->runs},
                      {"median_makespan", report.jitter->median_makespan},
                      {"p95_makespan", report.jitter->p95_makespan},
                      {"median_span", report.jitter->median_span},
                      {"p95_span", report.jitter->p95_span}};
  }
  out << json.dump(2) << '\n';
}

void write_comparison(std::ostream& out, const std::vector<SimulationReport>& reports) {
  std::size_t width = 8;
  for (const SimulationReport& report : reports) width = std::max(width, printable(report.file).size());
  fmt::print(out, "{:<{}}  {:>10}  {:>8}  {:>10}  {:>8}  {:>10}  {:>7}\n", "SCHEDULE", width, "SPAN", "BUBBLE",
             "MAKESPAN", "BUBBLE", "PEAK", "AGAINST");
  const double best = reports.front().simulation.span;
  for (const SimulationReport& report : reports) {
    const Simulation& s = report.simulation;
    fmt::print(out, "{:<{}}  {:>10.6g}  {:>8}  {:>10.6g}  {:>8}  {:>10.6g}  {:>7}\n", printable(report.file), width,
               s.span, percent(s.bubble_span()), s.makespan, percent(s.bubble_makespan()), s.peak_memory(),
               &report == &reports.front() ? "best" : fmt::format("+{}", percent(best > 0 ? s.span / best - 1 : 0)));
  }
}

void write_json_comparison(std::ostream& out, const std::vector<SimulationReport>& reports) {
  Json json = Json::array();
  for (const SimulationReport& report : reports) json.push_back(summary_json(report));
  out << json.dump(2) << '\n';
}

}  // namespace stagecraft::cli

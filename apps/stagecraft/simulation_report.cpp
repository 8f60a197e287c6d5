#include "simulation_report.h"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "report_text.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft::cli {
namespace {

Json summary_json(const SimulationReport& report) {
  Json json = {{"file", printable(report.file)},
               {"ranks", report.schedule.ranks()},
               {"stages", report.schedule.stages()},
               {"microbatches", report.schedule.microbatches}};
  add_outcome(json, report.simulation);
  return json;
}

std::string replicas_text(const Costs& costs, const Simulation& simulation) {
  double communication = 0;
  for (const RankOutcome& rank : simulation.ranks) communication += rank.communication;
  return fmt::format("{}, shard {}: communication {:.6g}, {} hidden behind compute", costs.replicas,
                     shard_name(costs.shard), communication, percent(simulation.hidden_communication()));
}

/// What each rank holds at its peak, and the time that its replicas communicate.
void write_memory_table(std::ostream& out, const SimulationReport& report) {
  fmt::print(out, "\n{:>4}  {:>10}  {:>10}  {:>10}  {:>11}  {:>13}  {:>7}\n", "RANK", "PARAMETERS", "GRADIENTS",
             "OPTIMIZER", "ACTIVATIONS", "COMMUNICATION", "EXPOSED");
  for (std::size_t r = 0; r < report.simulation.ranks.size(); ++r) {
    const RankOutcome& rank = report.simulation.ranks[r];
    const auto cell = [&](double memory) { return memory_cell(report.costs, memory); };
    fmt::print(out, "{:>4}  {:>10}  {:>10}  {:>10}  {:>11}  {:>13.6g}  {:>7.6g}\n", r, cell(rank.at_peak.parameters),
               cell(rank.at_peak.gradients), cell(rank.at_peak.optimizer), cell(rank.at_peak.activations),
               rank.communication, rank.exposed);
  }
}

}  // namespace

void write_report(std::ostream& out, const SimulationReport& report) {
  const Simulation& s = report.simulation;
  write_line(out, "file", printable(report.file));
  write_line(out, "makespan", makespan_text(s));
  write_line(out, "span", span_text(s));
  write_line(out, "peak memory", memory_cell(report.costs, s.peak_memory()));
  if (report.costs.replicas > 1) write_line(out, "replicas", replicas_text(report.costs, s));
  const CriticalSummary critical = summarize(report.path, report.schedule.ranks());
  write_line(out, "critical path",
             fmt::format("{} actions, compute {:.6g}, messages {:.6g}{}", report.path.size(), critical.compute,
                         critical.messages,
                         critical.parameters > 0 ? fmt::format(", parameters {:.6g}", critical.parameters) : ""));
  if (report.jitter) {
    write_line(out, "jitter",
               fmt::format("{} runs: makespan median {:.6g}, 95th percentile {:.6g}", report.jitter->runs,
                           report.jitter->median_makespan, report.jitter->p95_makespan));
  }
  fmt::print(out, "\n{:>4}  {:>10}  {:>10}  {:>10}  {:>7}  {:>10}  {:>14}\n", "RANK", "SPAN", "BUSY", "IDLE", "BUBBLE",
             "PEAK", "ON CRITICAL");
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    const RankOutcome& rank = s.ranks[r];
    const double idle = rank.span() - rank.busy;
    fmt::print(out, "{:>4}  {:>10.6g}  {:>10.6g}  {:>10.6g}  {:>7}  {:>10}  {:>14.6g}\n", r, rank.span(), rank.busy,
               std::max(idle, 0.0), percent(rank.span() > 0 ? std::max(idle, 0.0) / rank.span() : 0),
               memory_cell(report.costs, rank.peak_memory), critical.by_rank[r]);
  }
  if (report.costs.has_more_than_activations()) write_memory_table(out, report);
}

Json to_json(const SimulationReport& report) {
  Json json = summary_json(report);
  json["per_rank"] = Json::array();
  for (const RankOutcome& rank : report.simulation.ranks) {
    json["per_rank"].push_back({{"first_start", rank.first_start},
                                {"last_end", rank.last_end},
                                {"span", rank.span()},
                                {"busy", rank.busy},
                                {"end", rank.end},
                                {"peak_memory", rank.peak_memory},
                                {"at_peak",
                                 {{"parameters", rank.at_peak.parameters},
                                  {"gradients", rank.at_peak.gradients},
                                  {"optimizer", rank.at_peak.optimizer},
                                  {"activations", rank.at_peak.activations}}},
                                {"communication", rank.communication},
                                {"exposed", rank.exposed}});
  }
  const CriticalSummary critical = summarize(report.path, report.schedule.ranks());
  json["critical_path"] = {{"compute", critical.compute},
                           {"messages", critical.messages},
                           {"parameters", critical.parameters},
                           {"actions", Json::array()}};
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
  return json;
}

void write_comparison(std::ostream& out, const std::vector<SimulationReport>& reports) {
  std::size_t width = 8;
  for (const SimulationReport& report : reports) width = std::max(width, printable(report.file).size());
  fmt::print(out, "{:<{}}  {:>10}  {:>8}  {:>10}  {:>8}  {:>10}  {:>7}\n", "SCHEDULE", width, "SPAN", "BUBBLE",
             "MAKESPAN", "BUBBLE", "PEAK", "AGAINST");
  const double best = reports.front().simulation.span;
  for (const SimulationReport& report : reports) {
    const Simulation& s = report.simulation;
    fmt::print(out, "{:<{}}  {:>10.6g}  {:>8}  {:>10.6g}  {:>8}  {:>10}  {:>7}\n", printable(report.file), width,
               s.span, percent(s.bubble_span()), s.makespan, percent(s.bubble_makespan()),
               memory_cell(report.costs, s.peak_memory()),
               &report == &reports.front() ? "best" : fmt::format("+{}", percent(best > 0 ? s.span / best - 1 : 0)));
  }
}

Json comparison_json(const std::vector<SimulationReport>& reports) {
  Json json = Json::array();
  for (const SimulationReport& report : reports) json.push_back(summary_json(report));
  return json;
}

}  // namespace stagecraft::cli

#include "plan_report.h"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>

namespace stagecraft::cli {

void write_plan_report(std::ostream& out, const PlanRequest& request, const PlanResult& result, const Cuts& cuts) {
  const Simulation& s = result.simulation;
  write_line(out, "ranks", std::to_string(request.ranks));
  write_line(out, "stages",
             fmt::format("{}, placement {}", result.schedule.stages(), result.schedule.placement.style()));
  write_line(out, "microbatches", std::to_string(request.microbatches));
  if (!cuts.empty())
    write_line(out, "layers", fmt::format("stages begin at {}", fmt::join(cuts.begin(), cuts.end() - 1, " ")));
  write_line(out, "span", span_text(s));
  write_line(out, "lower bound",
             fmt::format("{:.6g}, bubble {}{}", result.lower_bound_span, percent(result.lower_bound_bubble),
                         result.proven ? ": nothing is shorter" : ""));
  write_line(out, "makespan", makespan_text(s));
  const std::string peak = memory_cell(request.costs, s.peak_memory());
  write_line(out, "peak memory",
             request.memory_limit > 0 ? fmt::format("{} of {}", peak, memory_text(request.costs, request.memory_limit))
                                      : peak);
  if (request.costs.has_more_than_activations()) write_line(out, "at the peak", peak_text(request.costs, s));
  write_line(out, "found by", result.origin);
  write_line(out, "search",
             fmt::format("{} trials in {:.1f} s, {}", result.trials, result.seconds,
                         result.finished ? "finished" : "ended early: another run may end elsewhere"));
  if (result.named.empty()) return;
  fmt::print(out, "\n{:<22}  {:>8}  {:>10}  {:>10}\n", "KNOWN SCHEDULE", "BUBBLE", "SPAN", "PEAK");
  std::vector<const NamedOutcome*> order;
  for (const NamedOutcome& named : result.named) order.push_back(&named);
  std::stable_sort(order.begin(), order.end(), [](const NamedOutcome* a, const NamedOutcome* b) {
    return a->simulation.span < b->simulation.span;
  });
  for (const NamedOutcome* named : order) {
    fmt::print(out, "{:<22}  {:>8}  {:>10.6g}  {:>10}{}\n", named->name, percent(named->simulation.bubble_span()),
               named->simulation.span, memory_cell(request.costs, named->simulation.peak_memory()),
               named->fits ? "" : "  does not fit");
  }
}

Json plan_json(const PlanRequest& request, const PlanResult& result, const Cuts& cuts) {
  Json json = {{"ranks", request.ranks},
               {"stages", result.schedule.stages()},
               {"microbatches", request.microbatches},
               {"placement", result.schedule.placement.style()},
               {"memory_limit", request.memory_limit > 0 ? Json(request.memory_limit) : Json()}};
  add_outcome(json, result.simulation);
  json.update({{"lower_bound_span", result.lower_bound_span},
               {"lower_bound_bubble", result.lower_bound_bubble},
               {"cuts", cuts.empty() ? Json() : Json(cuts)},
               {"proven", result.proven},
               {"found_by", result.origin},
               {"finished", result.finished},
               {"trials", result.trials},
               {"seconds", result.seconds},
               {"seed", request.seed},
               {"named", Json::array()}});
  for (const NamedOutcome& named : result.named) {
    json["named"].push_back({{"name", named.name},
                             {"span", named.simulation.span},
                             {"bubble_span", named.simulation.bubble_span()},
                             {"peak", named.simulation.peak_memory()},
                             {"fits", named.fits}});
  }
  return json;
}

}  // namespace stagecraft::cli

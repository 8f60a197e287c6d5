#include "outcome_text.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <ostream>

#include "report_json.h"

namespace stagecraft::cli {

void write_line(std::ostream& out, std::string_view label, std::string_view value) {
  fmt::print(out, "{:<16} {}\n", label, value);
}

std::string percent(double part) { return fmt::format("{:.2f}%", 100 * part); }

std::string span_text(const Simulation& simulation) {
  return fmt::format("{:.6g}, bubble {} (largest of a rank, first F to last W)", simulation.span,
                     percent(simulation.bubble_span()));
}

std::string makespan_text(const Simulation& simulation) {
  return fmt::format("{:.6g}, bubble {}", simulation.makespan, percent(simulation.bubble_makespan()));
}

void add_outcome(Json& json, const Simulation& simulation) {
  json["makespan"] = simulation.makespan;
  json["span"] = simulation.span;
  json["bubble_makespan"] = simulation.bubble_makespan();
  json["bubble_span"] = simulation.bubble_span();
  auto per_rank = Json::array();
  for (const RankOutcome& rank : simulation.ranks) per_rank.push_back(rank.peak_memory);
  json["peak"] = {{"max", simulation.peak_memory()}, {"per_rank", std::move(per_rank)}};
}

}  // namespace stagecraft::cli

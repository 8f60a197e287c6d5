#include "report_text.h"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "stagecraft/core/text.h"

namespace stagecraft::cli {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

bool is_control(std::string_view character) {
  const unsigned char lead = byte_at(character, 0);
  // C0, DEL, and the C1 set (U+0080 to U+009F), which some terminals interpret too.
  return lead < 0x20 || lead == 0x7f || (lead == 0xc2 && byte_at(character, 1) < 0xa0);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for_each_character(text, [&](std::string_view character, bool valid) {
    if (valid && !is_control(character)) {
      out += character;
    } else {
      for (const char byte : character) append_escaped(out, byte);
    }
  });
  return out;
}

std::string printable_lines(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += printable(text.substr(0, end));
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

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

std::string memory_cell(const Costs& costs, double memory) {
  return costs.memory_in_bytes ? memory_text(costs, memory) : fmt::format("{:.6g}", memory);
}

std::string peak_text(const Costs& costs, const Simulation& simulation) {
  const auto most =
      std::max_element(simulation.ranks.begin(), simulation.ranks.end(),
                       [](const RankOutcome& a, const RankOutcome& b) { return a.peak_memory < b.peak_memory; });
  const MemoryParts& parts = most->at_peak;
  return fmt::format("rank {}: parameters {}, gradients {}, optimizer {}, activations {}",
                     most - simulation.ranks.begin(), memory_cell(costs, parts.parameters),
                     memory_cell(costs, parts.gradients), memory_cell(costs, parts.optimizer),
                     memory_cell(costs, parts.activations));
}

void add_outcome(Json& json, const Simulation& simulation) {
  json["makespan"] = simulation.makespan;
  json["span"] = simulation.span;
  json["bubble_makespan"] = simulation.bubble_makespan();
  json["bubble_span"] = simulation.bubble_span();
  auto per_rank = Json::array();
  for (const RankOutcome& rank : simulation.ranks) per_rank.push_back(rank.peak_memory);
  json["peak"] = {{"max", simulation.peak_memory()}, {"per_rank", std::move(per_rank)}};
  json["hidden_communication"] = simulation.hidden_communication();
}

}  // namespace stagecraft::cli

#include "list_report.h"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>

#include "stagecraft/core/text.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft::cli {
namespace {

constexpr std::string_view kLegend =
    "\n"
    "p ranks, m microbatches, v stages per rank, q microbatches per round (p when p divides m), L memory limit.\n"
    "Bubble: idle time of a rank; F, B, I, W are the times of one stage.\n"
    "Memory: most activations, of one microbatch in one stage each, that rank r holds at once.\n\n";

using Cells = std::vector<std::string>;

std::string stages_text(const Generator& g) {
  if (g.min_stages_per_rank == g.max_stages_per_rank) return std::to_string(g.min_stages_per_rank);
  if (g.max_stages_per_rank >= kMaxStage) return fmt::format("{}+", g.min_stages_per_rank);
  return fmt::format("{}-{}", g.min_stages_per_rank, g.max_stages_per_rank);
}

/// Width in characters, not bytes: formulas may contain a superscript 2 or a multiplication sign.
std::size_t columns(std::string_view text) {
  std::size_t count = 0;
  for_each_character(text, [&](std::string_view, bool) { ++count; });
  return count;
}

void write_columns(std::ostream& out, const std::vector<Cells>& lines) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const Cells& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], columns(line[i]));
  }
  for (const Cells& line : lines) {
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i) {
      text += line[i];
      if (i + 1 < line.size()) text.append(widths[i] - columns(line[i]) + 2, ' ');
    }
    out << text << '\n';
  }
}

}  // namespace

void write_list(std::ostream& out) {
  std::vector<Cells> lines = {{"SCHEDULE", "PLACEMENT", "STAGES/RANK", "BUBBLE", "MEMORY", "SUMMARY"}};
  for (const Generator* g : generators()) {
    lines.push_back({std::string(g->name), std::string(g->placement), stages_text(*g), std::string(g->bubble),
                     std::string(g->memory), std::string(g->summary)});
  }
  write_columns(out, lines);
  out << kLegend;
  lines = {{"PASS", "SUMMARY"}};
  for (const Pass& pass : passes()) lines.push_back({std::string(pass.name), std::string(pass.summary)});
  write_columns(out, lines);
  out << "\nDefault lowering: " << kDefaultLowering << '\n';
}

Json list_json() {
  Json list;
  list["schedules"] = Json::array();
  for (const Generator* g : generators()) {
    list["schedules"].push_back({{"name", g->name},
                                 {"placement", g->placement},
                                 {"min_stages_per_rank", g->min_stages_per_rank},
                                 {"max_stages_per_rank", g->max_stages_per_rank},
                                 {"default_stages_per_rank", g->default_stages_per_rank},
                                 {"takes_memory_limit", g->takes_memory_limit},
                                 {"bubble", g->bubble},
                                 {"memory", g->memory},
                                 {"summary", g->summary}});
  }
  list["passes"] = Json::array();
  for (const Pass& pass : passes()) list["passes"].push_back({{"name", pass.name}, {"summary", pass.summary}});
  list["default_lowering"] = kDefaultLowering;
  return list;
}

}  // namespace stagecraft::cli

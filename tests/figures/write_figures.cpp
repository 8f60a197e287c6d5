// Writes docs/planner.md: the planner's bubble beside the published one and the lower bound, for every published row.
//   write_figures FILE [SECONDS PER ROW]

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "full_backward.h"
#include "interleaved_rule.h"
#include "published.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/plan/planner.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft::figures {
namespace {

constexpr double kRounding = 0.5e-4;  // published to four digits

constexpr const char* kIntroduction = R"(# What the planner finds

Written by `make figures`: every published row that the planner is meant to match or beat, searched anew. *Ours* is the bubble of the
plan, simulated; *published* the one of the paper; *bound* a lower bound that holds for every schedule with this placement and limit, so
a row where it equals ours cannot be improved. Bubbles are (span − work) / span, the span being the largest of any rank from its first F to
its last W. Memory is the largest peak of any rank, of the limit. Seconds are those of a search with default effort and seed 0,
on {} threads.

)";

constexpr const char* kInterleaved = R"(
## 1F1B-I: several stages per rank in a loop, full backwards

The published cells leave out the wait for one lap of messages, p T_comm: all but the first microbatch of a round pass from the last rank to the
first without waiting. *By that rule* is our generator's order with that left out, *exact* the same order with every message waited for, as a
rank must. No order is held to that, though: *ours* is one that the planner finds with the same stages, full backwards and no more memory
than 1F1B-I takes, simulated exactly.

| stages per rank | p | m | by that rule | exact | ours | published | bound | | memory | seconds |
|-|-|-|-|-|-|-|-|-|-|-|
)";

struct Tally {
  int rows = 0;
  int reached = 0;
  int better = 0;
  int optimal = 0;
};

struct Search {
  int p;
  int m;
  Costs costs;
  PlacementChoice placement;
  double limit;
  int stages_per_rank = 0;
  bool full_backwards = false;
};

class Writer {
 public:
  Writer(std::ostream& out, double seconds) : out_(out), seconds_(seconds) {}

  /// One row of a table; `first` is what stands before the figures.
  void row(const std::string& first, const Search& search, double published) {
    PlanRequest request;
    request.ranks = search.p;
    request.microbatches = search.m;
    request.costs = search.costs;
    request.placement = search.placement;
    request.stages_per_rank = search.stages_per_rank;
    request.memory_limit = search.limit;
    request.time_budget = seconds_;
    PlanResult result = plan(request);
    if (search.full_backwards) {
      result.schedule = with_full_backwards(std::move(result.schedule));
      result.simulation = simulate(result.schedule, search.costs);
    }
    require_valid(result.schedule);
    const double ours = result.simulation.bubble_span();
    const bool fits = result.simulation.peak_memory() <= search.limit + 1e-6;
    const bool reached = fits && ours <= published + kRounding;
    const bool better = fits && ours < published - kRounding;
    const bool optimal = result.simulation.span <= result.lower_bound_span * (1 + 1e-9);
    ++tally_.rows;
    tally_.reached += reached;
    tally_.better += better;
    tally_.optimal += optimal;
    const std::string line =
        fmt::format("| {} | {:.4f} | {:.4f} | {:.4f} | {} | {:.4g} of {:g} | {:.1f}{} |", first, ours, published,
                    result.lower_bound_bubble,
                    !reached  ? "**worse**"
                    : optimal ? (better ? "better, optimal" : "equal, optimal")
                    : better  ? "better"
                              : "equal",
                    result.simulation.peak_memory(), search.limit, result.seconds, result.finished ? "" : ", cut");
    out_ << line << std::endl;
    std::cout << line << std::endl;
  }

  void interleaved(int p, int m, int v, const Costs& costs, double published) {
    const Schedule known = make_schedule("Interleaved1F1B", {.ranks = p, .stages_per_rank = v, .microbatches = m});
    const Simulation exact = simulate(known, costs);
    row(fmt::format("{} | {} | {} | {:.4f} | {:.4f}", v, p, m, interleaved_by_rule(known, costs), exact.bubble_span()),
        {p, m, with_full_backwards(costs), PlacementChoice::kLoop, exact.peak_memory(), v, true}, published);
  }

  [[nodiscard]] const Tally& tally() const { return tally_; }

 private:
  std::ostream& out_;
  double seconds_;
  Tally tally_;
};

int write(const std::string& path, double seconds) {
  std::ofstream out(path);
  out << fmt::format(kIntroduction, std::thread::hardware_concurrency());
  Writer writer(out, seconds);
  const std::string columns = " ours | published | bound | | memory | seconds |\n";

  out << "\n## ZB-2p: one stage per rank, twice 1F1B's memory\n\n| model | p | m |" << columns
      << "|-|-|-|-|-|-|-|-|-|\n";
  for (const ZeroBubbleRow& row : kZeroBubble) {
    writer.row(
        fmt::format("{} | {} | {}", row.model, row.p, row.m),
        {row.p, row.m, costs_of(row.times, 1, row.weight_gradient_memory()), PlacementChoice::kLinear, 2.0 * row.p},
        row.zb_2p);
  }
  out << "\n## ZB-V: two stages per rank in a V, 1F1B's memory\n\nActivations count in full from F to W.\n\n| p | m |"
      << columns << "|-|-|-|-|-|-|-|-|\n";
  for (const ZeroBubbleVRow& row : kZeroBubbleV) {
    writer.row(fmt::format("{} | {}", row.p, row.m),
               {row.p, row.m, costs_of(row.times), PlacementChoice::kV, 2.0 * row.p}, row.zb_v);
  }
  out << "\n## Controllable memory: two stages per rank in a V, little memory\n\n| p | m | limit |" << columns
      << "|-|-|-|-|-|-|-|-|-|\n";
  for (const ControllableMemoryRow& row : kControllableMemory) {
    writer.row(fmt::format("{} | {} | {}", row.p, row.m, row.limit),
               {row.p, row.m, costs_of(row.times), PlacementChoice::kV, 1.0 * row.limit}, row.best_known);
  }
  out << kInterleaved;
  for (const ZeroBubbleRow& row : kZeroBubble) {
    writer.interleaved(row.p, row.m, row.interleaved_stages, costs_of(row.times, row.interleaved_stages),
                       row.interleaved);
  }
  for (const ZeroBubbleVRow& row : kZeroBubbleV) {
    writer.interleaved(row.p, row.m, 2, costs_of(row.times), row.interleaved);
  }
  const Tally& tally = writer.tally();
  const std::string summary =
      fmt::format("\nOf {} rows {} reach the published bubble, {} are better, {} are proven optimal.\n", tally.rows,
                  tally.reached, tally.better, tally.optimal);
  out << summary;
  std::cout << summary;
  return tally.reached == tally.rows && 2 * tally.better >= tally.rows ? 0 : 1;
}

}  // namespace
}  // namespace stagecraft::figures

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "write_figures FILE [SECONDS PER ROW]\n";
    return 2;
  }
  return stagecraft::figures::write(argv[1], argc > 2 ? std::atof(argv[2]) : 30);
}

#include "stage_times.h"

#include <algorithm>

#include <fmt/format.h>

#include "stagecraft/core/error.h"
#include "stagecraft/graph/cut.h"
#include "stagecraft/graph/operators.h"
#include "stagecraft/sim/cost_file.h"
#include "trainer.h"

namespace stagecraft::cli {
namespace {

double step_time(const StageCosts& stage) { return stage.forward + stage.backward; }

double largest_time(const Costs& times) {
  double most = 0;
  for (const StageCosts& stage : times.stages) most = std::max(most, step_time(stage));
  return most;
}

/// Work by node, scaled so that each stage has the time that was measured.
std::vector<double> scaled_work(const graph::Program& program, const std::vector<int>& places, const Costs& times) {
  std::vector<double> work;
  for (const graph::Node& node : program.nodes) work.push_back(graph::work_of(program, node));
  for (std::size_t stage = 0; stage < times.stages.size(); ++stage) {
    const auto first = work.begin() + (stage == 0 ? 0 : places[stage - 1]);
    const auto last = stage == places.size() ? work.end() : work.begin() + places[stage];
    double estimated = 0;
    for (auto each = first; each != last; ++each) estimated += *each;
    if (estimated <= 0) continue;
    for (auto each = first; each != last; ++each) *each *= step_time(times.stages[stage]) / estimated;
  }
  return work;
}

}  // namespace

Costs measured_times(const MeasuredModel& model, const std::vector<int>& places) {
  std::vector<std::string> arguments = {"--stage-times", model.file};
  for (const int place : places) arguments.insert(arguments.end(), {"--cut-before", std::to_string(place)});
  if (!model.model.empty()) arguments.insert(arguments.end(), {"--model", model.model});
  for (const std::string& library : model.load) arguments.insert(arguments.end(), {"--load", library});
  Costs times = parse_costs(output_of_trainer(arguments));
  if (times.stages.size() != places.size() + 1) {
    throw InternalError("times of " + std::to_string(times.stages.size()) + " stages were measured, not of " +
                        std::to_string(places.size() + 1));
  }
  return times;
}

std::vector<int> measured_places(const MeasuredModel& model, const graph::Program& program, int stages, Costs& times) {
  constexpr int kRounds = 3;
  std::vector<int> best = graph::balanced_places(program, stages);
  times = measured_times(model, best);
  std::vector<int> places = best;
  Costs last = times;
  for (int round = 1; round < kRounds; ++round) {
    std::vector<int> next = graph::balanced_places(program, stages, scaled_work(program, places, last));
    if (next == places) break;
    places = std::move(next);
    last = measured_times(model, places);
    if (largest_time(last) >= largest_time(times)) continue;
    best = places;
    times = last;
  }
  return best;
}

void set_times(Costs& costs, const Costs& measured) {
  for (std::size_t i = 0; i < costs.stages.size(); ++i) {
    StageCosts& own = costs.stages[i];
    const StageCosts& times = measured.stages.at(i);
    own.forward = times.forward;
    own.backward = times.backward;
    own.backward_input = times.backward_input;
    own.backward_weight = times.backward_weight;
  }
}

std::string times_text(const Costs& times) {
  std::string text =
      fmt::format("{:>5} {:>12} {:>12} {:>12} {:>12}\n", "stage", "forward", "backward", "input", "weight");
  for (std::size_t i = 0; i < times.stages.size(); ++i) {
    const StageCosts& own = times.stages[i];
    const auto ms = [](double seconds) { return fmt::format("{:.4g} ms", 1e3 * seconds); };
    text += fmt::format("{:>5} {:>12} {:>12} {:>12} {:>12}\n", i, ms(own.forward), ms(own.backward),
                        ms(own.backward_input), ms(own.backward_weight));
  }
  return text;
}

}  // namespace stagecraft::cli

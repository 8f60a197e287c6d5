#pragma once

#include <string>
#include <vector>

#include "stagecraft/graph/program.h"
#include "stagecraft/sim/costs.h"

/// Stages timed on this machine, for `split --measure`.
namespace stagecraft::cli {

struct MeasuredModel {
  std::string file;
  std::string model;              ///< Which one of the file; empty: the only one.
  std::vector<std::string> load;  ///< Libraries with its operators.
};

/// Times of the stages in seconds; the other costs are not set. Throws Failure.
Costs measured_times(const MeasuredModel& model, const std::vector<int>& places);

/// Places for stages of about equal measured time: cuts by the estimates, measures, cuts again by what each stage took
/// for the work estimated in it, at most three times; the best of them, with its times in `times`.
std::vector<int> measured_places(const MeasuredModel& model, const graph::Program& program, int stages, Costs& times);

/// Replaces times by measured ones, and keeps memory and the sizes of messages.
void set_times(Costs& costs, const Costs& measured);

/// A table with one line per stage.
std::string times_text(const Costs& times);

}  // namespace stagecraft::cli

#pragma once

#include <string>
#include <string_view>

#include "stagecraft/sim/costs.h"

/// The JSON form of costs. Short: {"forward": 18.5, "backward_input": 18.1, "backward_weight": 9.3, "latency": 0.6},
/// where a number applies to all stages and a list has one entry per stage. Long: "stages" holds one object per stage.
/// Keys are documented in docs/guide/planning.md.
namespace stagecraft {

/// An entry of "layers": a piece of the model that is never cut. A stage is a run of consecutive layers.
struct Layer {
  std::string name;
  StageCosts costs;
};

/// A parsed file holds stages or layers. With layers, `costs.stages` is not set.
struct CostFile {
  Costs costs;
  std::vector<Layer> layers;
};

/// As `parse_costs`, but also accepts files with layers.
CostFile parse_cost_file(std::string_view json);

/// Throws InvalidArgument with one line per problem, each with its key: unknown or missing keys, values that are
/// negative, infinite or of the wrong type, lists of different lengths.
Costs parse_costs(std::string_view json);

/// A complete file in the long form, with every key.
std::string example_costs();

/// The same with memory in bytes: stages of 1.2 billion parameters in bfloat16, with float32 masters and Adam, on four
/// replicas. Times are in milliseconds.
std::string example_costs_in_bytes();

/// Writes the long form; `parse_costs` of the result gives the same costs.
std::string costs_to_json(const Costs& costs);

/// The same for costs by stage or by layer; `parse_cost_file` of the result gives the same file.
std::string cost_file_to_json(const CostFile& file);

}  // namespace stagecraft

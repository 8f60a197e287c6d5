#pragma once

#include <string>
#include <string_view>

#include "stagecraft/sim/costs.h"

/// The JSON form of costs. Short: {"forward": 18.5, "backward_input": 18.1, "backward_weight": 9.3, "latency": 0.6},
/// where a number is for all stages and a list is by stage. Long: "stages" holds one object per stage. Keys are
/// documented in docs/guide/planning.md.
namespace stagecraft {

/// A piece of the model that is never cut, as "layers" lists them: stages are made of consecutive ones.
struct Layer {
  std::string name;
  StageCosts costs;
};

/// A file holds stages or layers. With layers, `costs` has everything but the stages.
struct CostFile {
  Costs costs;
  std::vector<Layer> layers;
};

/// As `parse_costs`, and takes layers too.
CostFile parse_cost_file(std::string_view json);

/// Throws InvalidArgument. Its message has a line per problem, each with the key: unknown, missing, negative, infinite,
/// of the wrong type, lists of different lengths.
Costs parse_costs(std::string_view json);

/// A complete file in the long form, with every key.
std::string example_costs();

/// The long form. `parse_costs` reads it back to the same costs.
std::string costs_to_json(const Costs& costs);

}  // namespace stagecraft

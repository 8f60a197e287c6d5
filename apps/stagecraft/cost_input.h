#pragma once

#include <string>

#include "stagecraft/sim/cost_file.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stagecraft::cli {

/// Adds the required option --costs FILE.
CLI::Option* add_costs(CLI::App& parser, std::string& target);

/// Reads a file of costs, or standard input for "-". Throws Failure with the first problem as its line and the others
/// as details.
Costs read_costs(const std::string& path);

/// The same, but also accepts costs by layer.
CostFile read_cost_file(const std::string& path);

}  // namespace stagecraft::cli

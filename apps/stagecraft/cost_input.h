#pragma once

#include <string>

#include "stagecraft/sim/cost_file.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stagecraft::cli {

/// --costs FILE, required.
CLI::Option* add_costs(CLI::App& parser, std::string& target);

/// Reads a file of costs, or standard input for "-". Throws Failure: one line for the first problem, the others below
/// it.
Costs read_costs(const std::string& path);

/// The same, and takes layers too.
CostFile read_cost_file(const std::string& path);

}  // namespace stagecraft::cli

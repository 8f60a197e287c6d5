#include "cost_input.h"

#include <CLI/CLI.hpp>

#include "options.h"
#include "parsed_input.h"
#include "stagecraft/sim/cost_file.h"

namespace stagecraft::cli {

CLI::Option* add_costs(CLI::App& parser, std::string& target) {
  return parser
      .add_option("--costs", target, "Costs in JSON; 'stagecraft costs --example' shows one; - reads standard input")
      ->type_name(std::string(kFileType))
      ->required();
}

Costs read_costs(const std::string& path) { return read_parsed(path, parse_costs); }

CostFile read_cost_file(const std::string& path) { return read_parsed(path, parse_cost_file); }

}  // namespace stagecraft::cli

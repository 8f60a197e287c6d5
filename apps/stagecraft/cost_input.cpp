#include "cost_input.h"

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include "failure.h"
#include "input.h"
#include "options.h"
#include "stagecraft/core/error.h"
#include "stagecraft/sim/cost_file.h"

namespace stagecraft::cli {
namespace {

template <typename Parse>
auto read_with(const std::string& path, Parse&& parse) {
  try {
    return parse(read_text(path));
  } catch (const InvalidArgument& error) {
    std::string line = error.what();
    std::string details;
    if (const std::size_t end = line.find('\n'); end != std::string::npos) {
      details = line.substr(end + 1) + "\n";
      line.resize(end);
    }
    throw Failure(kUnusable, fmt::format("{}: {}", source_name(path), line), details);
  }
}

}  // namespace

CLI::Option* add_costs(CLI::App& parser, std::string& target) {
  return parser
      .add_option("--costs", target, "Costs in JSON; 'stagecraft costs --example' shows one; - reads standard input")
      ->type_name(std::string(kFileType))
      ->required();
}

Costs read_costs(const std::string& path) { return read_with(path, parse_costs); }

CostFile read_cost_file(const std::string& path) { return read_with(path, parse_cost_file); }

}  // namespace stagecraft::cli

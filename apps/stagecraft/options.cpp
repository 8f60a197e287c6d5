#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>

#include <fmt/format.h>

#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"

namespace stagecraft::cli {
namespace {

/// The name of an option in messages: "--colour" for "--colour,--color".
std::string first_name(const std::string& flags) { return flags.substr(0, flags.find(',')); }

/// Parses a decimal number; CLI11 would read 010 as eight and 0x10 as sixteen.
int to_count(const std::string& flag, const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || last != end || value < 1) {
    throw CLI::ValidationError(flag, fmt::format("'{}' is not a whole number from 1 to {}", text, INT_MAX));
  }
  return value;
}

std::string checked_passes(const std::string& text) {
  std::string_view rest = text;
  while (true) {  // at least once, so that an empty list is an error too
    const std::size_t comma = std::min(rest.find(','), rest.size());
    try {
      find_pass(CLI::detail::trim_copy(std::string(rest.substr(0, comma))));
    } catch (const InvalidArgument& error) {
      throw CLI::ValidationError("--passes", error.what());
    }
    if (comma == rest.size()) return text;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace

CLI::Option* add_choice(CLI::App& parser, const std::string& flags, std::string& target,
                        const std::vector<std::string>& choices, const std::string& description) {
  const std::string shown = CLI::detail::join(choices, std::string(1, kOr));
  const auto check = [=, &target](const std::string& text) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      throw CLI::ValidationError(first_name(flags), fmt::format("'{}' is not one of {}", text, shown));
    }
    target = text;
  };
  return parser.add_option_function<std::string>(flags, check, description)->type_name(shown);
}

CLI::Option* add_count(CLI::App& parser, const std::string& flags, int& target, const std::string& description) {
  const auto check = [=, &target](const std::string& text) { target = to_count(first_name(flags), text); };
  return parser.add_option_function<std::string>(flags, check, description)->type_name(std::string(kNumberType));
}

CLI::Option* add_number(CLI::App& parser, const std::string& flags, double& target, double least,
                        const std::string& description) {
  const auto check = [=, &target](const std::string& text) {
    const char* end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data(), end, target);
    if (error != std::errc() || last != end || !std::isfinite(target) || target < least) {
      throw CLI::ValidationError(first_name(flags), fmt::format("'{}' is not a number from {} up", text, least));
    }
  };
  return parser.add_option_function<std::string>(flags, check, description)->type_name(std::string(kNumberType));
}

CLI::Option* add_passes(CLI::App& parser, std::string& target, const std::string& description) {
  const auto check = [&target](const std::string& text) { target = checked_passes(text); };
  return parser.add_option_function<std::string>("--passes", check, description)->type_name(std::string(kPassesType));
}

CLI::Option* add_input(CLI::App& parser, std::string& target) {
  return parser.add_option("file", target, "Schedule in CSV, one line per rank; - reads standard input")
      ->type_name(std::string(kFileType))
      ->required();
}

CLI::Option* add_output(CLI::App& parser, std::string& target) {
  return parser.add_option("-o,--output", target, "Write to FILE instead of standard output; all of it or nothing")
      ->type_name(std::string(kFileType));
}

}  // namespace stagecraft::cli

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

/// Options that check their value and say in one line what would be right. The type name of each (what `--help` shows
/// after the option) also tells the completion scripts which values to offer: FILE, NAME, PASSES, N, or the choices
/// themselves.
namespace stagecraft::cli {

inline constexpr std::string_view kFileType = "FILE";
inline constexpr std::string_view kNameType = "NAME";
inline constexpr std::string_view kPassesType = "PASSES";
inline constexpr std::string_view kNumberType = "N";
/// Between choices.
inline constexpr char kOr = '|';

/// The targets outlive the parser's `parse`.
CLI::Option* add_choice(CLI::App& parser, const std::string& flags, std::string& target,
                        const std::vector<std::string>& choices, const std::string& description);

/// 1 and up.
CLI::Option* add_count(CLI::App& parser, const std::string& flags, int& target, const std::string& description);

/// A finite number, not below `least`.
CLI::Option* add_number(CLI::App& parser, const std::string& flags, double& target, double least,
                        const std::string& description);

/// A comma-separated list of known passes.
CLI::Option* add_passes(CLI::App& parser, std::string& target, const std::string& description);

/// The schedule file a command reads.
CLI::Option* add_input(CLI::App& parser, std::string& target);

/// -o FILE.
CLI::Option* add_output(CLI::App& parser, std::string& target);

}  // namespace stagecraft::cli

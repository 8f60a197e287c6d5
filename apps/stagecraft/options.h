#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

/// Options that check their value, with one-line errors that name valid values. The type name of an option (shown by
/// `--help`) also tells the completion scripts which values to offer: FILE, NAME, PASSES, N, or the choices themselves.
namespace stagecraft::cli {

inline constexpr std::string_view kFileType = "FILE";
inline constexpr std::string_view kNameType = "NAME";
inline constexpr std::string_view kPassesType = "PASSES";
inline constexpr std::string_view kNumberType = "N";
/// Separator of choices in a type name.
inline constexpr char kOr = '|';

/// An option with a fixed set of values. Targets must outlive the call of `parse`, here and below.
CLI::Option* add_choice(CLI::App& parser, const std::string& flags, std::string& target,
                        const std::vector<std::string>& choices, const std::string& description);

/// A whole number from 1 up.
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

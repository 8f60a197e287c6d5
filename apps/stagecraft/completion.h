#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

/// Shell completion. The commands and options come from the parser, so that the scripts cannot get out of date. There
/// is one writer per shell.
namespace stagecraft::cli {

/// The values an option or a positional takes.
struct Values {
  enum class Kind { kNone, kAny, kFile, kWord, kList };
  Kind kind = Kind::kNone;         ///< kNone: a flag; kAny: no completion; kList: words joined by commas.
  std::vector<std::string> words;  ///< For kWord and kList.
  bool repeats = false;            ///< For a positional: it takes all remaining words.
};

struct CompletedOption {
  std::vector<std::string> names;  ///< "-o", "--output"; a positional has one name.
  std::string description;
  Values values;
};

struct CompletedCommand {
  std::string name;
  std::string description;
  std::vector<CompletedOption> options;
  std::vector<CompletedOption> positionals;
};

/// The options of the program itself, without its commands.
CompletedCommand completed_program(const CLI::App& program);
std::vector<CompletedCommand> completed_commands(const CLI::App& program);

std::string bash_completion(const CLI::App& program);
std::string zsh_completion(const CLI::App& program);

}  // namespace stagecraft::cli

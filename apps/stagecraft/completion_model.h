#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

/// What can be completed, read off the parser itself, so that the scripts cannot drift from it. One writer per shell.
namespace stagecraft::cli {

/// The values an option or a positional takes.
struct Values {
  enum class Kind { kNone, kAny, kFile, kWord, kList };
  Kind kind = Kind::kNone;         ///< kNone: a flag; kAny: nothing can be offered; kList: words joined by commas.
  std::vector<std::string> words;  ///< For kWord and kList.
  bool repeats = false;            ///< Of a positional: it takes all that follow.
};

struct CompletedOption {
  std::vector<std::string> names;  ///< "-o", "--output"; of a positional, its one name.
  std::string description;
  Values values;
};

struct CompletedCommand {
  std::string name;
  std::string description;
  std::vector<CompletedOption> options;
  std::vector<CompletedOption> positionals;
};

/// The program without its commands.
CompletedCommand completed_program(const CLI::App& program);
std::vector<CompletedCommand> completed_commands(const CLI::App& program);

std::string bash_completion(const CLI::App& program);
std::string zsh_completion(const CLI::App& program);

}  // namespace stagecraft::cli

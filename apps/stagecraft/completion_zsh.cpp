#include "completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft::cli {
namespace {

constexpr std::string_view kEnd = R"(      esac
      ;;
  esac
}

if [[ $funcstack[1] == _stagecraft ]]; then
  _stagecraft "$@"
else
  compdef _stagecraft stagecraft
fi
)";

/// Escapes text for a single-quoted _arguments specification, where : [ ] have a meaning.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (c == ':' || c == '[' || c == ']' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

/// The "message:action" part of a specification.
std::string action(const std::string& label, const Values& values) {
  switch (values.kind) {
    case Values::Kind::kFile:
      return fmt::format(":{}:_files", label);
    case Values::Kind::kWord:
      return fmt::format(":{}:({})", label, fmt::join(values.words, " "));
    case Values::Kind::kList:
      return fmt::format(":{0}:_sequence compadd - {1}", label, fmt::join(values.words, " "));
    case Values::Kind::kAny:
      return fmt::format(":{}: ", label);
    default:
      return {};
  }
}

std::string label_of(const CompletedOption& option) {
  std::string label = option.names.back();
  label.erase(0, label.find_first_not_of('-'));
  return label;
}

/// Appends '(-o --output)-o[text]:output:_files' for each name; each name excludes the others.
void append_option(std::string& script, const CompletedOption& option, std::string_view indent) {
  for (const std::string& name : option.names) {
    const bool valued = option.values.kind != Values::Kind::kNone;
    const std::string_view joint = !valued ? "" : name.starts_with("--") ? "=" : "+";
    script += fmt::format(" \\\n{}'({}){}{}[{}]{}'", indent, fmt::join(option.names, " "), name, joint,
                          escaped(option.description), action(label_of(option), option.values));
  }
}

void append_zsh_command(std::string& script, const CompletedCommand& command) {
  constexpr std::string_view kIndent = "            ";
  script += fmt::format("        {})\n          _arguments", command.name);
  for (const CompletedOption& option : command.options) append_option(script, option, kIndent);
  for (std::size_t i = 0; i < command.positionals.size(); ++i) {
    const Values& values = command.positionals[i].values;
    const std::string place = values.repeats ? "*" : std::to_string(i + 1);
    script += fmt::format(" \\\n{}'{}{}'", kIndent, place, action(label_of(command.positionals[i]), values));
  }
  script += "\n          ;;\n";
}

}  // namespace

std::string zsh_completion(const CLI::App& program) {
  const std::vector<CompletedCommand> commands = completed_commands(program);
  std::string script =
      "#compdef stagecraft\n"
      "# zsh completion for stagecraft: put it into a folder of $fpath as _stagecraft, or after compinit\n"
      "# source <(stagecraft completion zsh)\n"
      "_stagecraft() {\n"
      "  local curcontext=$curcontext state line\n"
      "  typeset -A opt_args\n"
      "  _arguments -C";
  for (const CompletedOption& option : completed_program(program).options) append_option(script, option, "    ");
  script += " \\\n    '1:command:->command' \\\n    '*::argument:->argument'\n\n  case $state in\n    command)\n";
  script += "      local -a commands=(\n";
  for (const CompletedCommand& command : commands) {
    script += fmt::format("        '{}:{}'\n", command.name, escaped(command.description));
  }
  script += "      )\n      _describe command commands\n      ;;\n    argument)\n      case $words[1] in\n";
  for (const CompletedCommand& command : commands) append_zsh_command(script, command);
  return script += kEnd;
}

}  // namespace stagecraft::cli

#include "completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft::cli {
namespace {

/// Scans the words before the cursor. Afterwards, `pending` is the option whose value is being typed. "--format=csv" is
/// three words, because = is one of bash's word breaks.
constexpr std::string_view kScan = R"(  local cur=${COMP_WORDS[COMP_CWORD]} command='' pending='' positionals=0
  local options='' valued='' words='' list='' files='' word i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == '=' ]]; then
      continue
    elif [[ -n $pending ]]; then
      pending=''
    elif [[ $word == -?* ]]; then
      [[ " $valued " == *" $word "* ]] && pending=$word
    elif [[ -n $command ]]; then
      positionals=$((positionals + 1))
    else
      command=$word
      case $command in
)";

/// Completes a list after its last comma. Offers words already in the list again, since some lists repeat a pass.
constexpr std::string_view kReply = R"(  if [[ -n $list ]]; then
    local done=''
    [[ $cur == *,* ]] && done=${cur%,*},
    for word in $list; do words+=" $done$word"; done
    compopt -o nospace 2>/dev/null
  fi
  if [[ -n $files ]]; then
    compopt -o filenames 2>/dev/null
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$cur")
  else
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -W "$words" -- "$cur")
  fi
}
complete -F _stagecraft stagecraft
)";

std::string names(const CompletedCommand& command, bool only_valued) {
  std::vector<std::string> all;
  for (const CompletedOption& option : command.options) {
    if (only_valued && option.values.kind == Values::Kind::kNone) continue;
    all.insert(all.end(), option.names.begin(), option.names.end());
  }
  return fmt::format("{}", fmt::join(all, " "));
}

std::string offer(const Values& values) {
  switch (values.kind) {
    case Values::Kind::kFile:
      return "files=1";
    case Values::Kind::kWord:
      return fmt::format("words='{}'", fmt::join(values.words, " "));
    case Values::Kind::kList:
      return fmt::format("list='{}'", fmt::join(values.words, " "));
    default:
      return ":";
  }
}

void append_bash_command(std::string& script, const CompletedCommand& command) {
  for (const CompletedOption& option : command.options) {
    if (option.values.kind == Values::Kind::kNone) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) patterns.push_back(command.name + ":" + name);
    script += fmt::format("    {}) {} ;;\n", fmt::join(patterns, "|"), offer(option.values));
  }
  script += fmt::format("    {}:)\n      if [[ $cur == -?* ]]; then\n        words=$options\n", command.name);
  for (std::size_t i = 0; i < command.positionals.size(); ++i) {
    const Values& values = command.positionals[i].values;
    script += fmt::format("      elif ((positionals {} {})); then\n        {}\n", values.repeats ? ">=" : "==", i,
                          offer(values));
  }
  script += "      fi\n      ;;\n";
}

}  // namespace

std::string bash_completion(const CLI::App& program) {
  const std::vector<CompletedCommand> commands = completed_commands(program);
  std::string script = "# bash completion for stagecraft: source <(stagecraft completion bash)\n_stagecraft() {\n";
  script += kScan;
  std::string command_names;
  for (const CompletedCommand& command : commands) {
    command_names += command.name + ' ';
    script += fmt::format("        {})\n          options='{}'\n          valued='{}'\n          ;;\n", command.name,
                          names(command, false), names(command, true));
  }
  script += "      esac\n    fi\n  done\n  [[ $cur == '=' ]] && cur=''\n\n  case $command:$pending in\n";
  script += fmt::format("    :) words='{}{}' ;;\n", command_names, names(completed_program(program), false));
  for (const CompletedCommand& command : commands) append_bash_command(script, command);
  script += "  esac\n\n";
  return script += kReply;
}

}  // namespace stagecraft::cli

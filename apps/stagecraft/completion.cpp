#include "completion.h"

#include <CLI/CLI.hpp>

#include "command.h"
#include "failure.h"
#include "options.h"
#include "output.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft::cli {
namespace {

Values values_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};  // a flag
  const std::string type = option.get_type_name();
  if (type.starts_with(kFileType)) return {.kind = Values::Kind::kFile, .words = {}};
  if (type.find(kOr) != std::string::npos) return {.kind = Values::Kind::kWord, .words = CLI::detail::split(type, kOr)};
  Values values{.kind = Values::Kind::kAny, .words = {}};
  if (type == kNameType) {
    values.kind = Values::Kind::kWord;
    for (const Generator* generator : generators()) values.words.emplace_back(generator->name);
  } else if (type == kPassesType) {
    values.kind = Values::Kind::kList;
    for (const Pass& pass : passes()) values.words.emplace_back(pass.name);
  }
  return values;
}

CompletedOption completed(const CLI::Option& option) {
  CompletedOption out{.names = {}, .description = option.get_description(), .values = values_of(option)};
  if (option.get_positional()) {
    out.names.push_back(option.get_name(true));
    out.values.repeats = option.get_items_expected_max() > 1;
  }
  for (const std::string& name : option.get_snames()) out.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out.names.push_back("--" + name);
  return out;
}

CompletedCommand completed(const CLI::App& parser) {
  CompletedCommand out{
      .name = parser.get_name(), .description = parser.get_description(), .options = {}, .positionals = {}};
  for (const CLI::Option* option : parser.get_options()) {
    (option->get_positional() ? out.positionals : out.options).push_back(completed(*option));
  }
  return out;
}

constexpr const char* kCompletionExamples =
    "Examples:\n"
    "  source <(stagecraft completion bash)                          (in ~/.bashrc)\n"
    "  source <(stagecraft completion zsh)                           (in ~/.zshrc, after compinit)\n"
    "  stagecraft completion zsh -o ~/.zfunc/_stagecraft             (a folder of $fpath)";

class CompletionCommand : public Command {
 public:
  explicit CompletionCommand(CLI::App& program)
      : Command(program.add_subcommand("completion", "Print the completion script for a shell")), program_(program) {
    add_choice(*parser_, "shell", shell_, {"bash", "zsh"}, "The shell to complete in")->required();
    add_output(*parser_, output_);
    parser_->footer(kCompletionExamples);
  }

  int run() override {
    const std::string script = shell_ == "bash" ? bash_completion(program_) : zsh_completion(program_);
    write_output(output_, [&](std::ostream& out) { out << script; });
    return kOk;
  }

 private:
  const CLI::App& program_;
  std::string shell_;
  std::string output_ = "-";
};

}  // namespace

CompletedCommand completed_program(const CLI::App& program) { return completed(program); }

std::vector<CompletedCommand> completed_commands(const CLI::App& program) {
  std::vector<CompletedCommand> commands;
  for (const CLI::App* command : program.get_subcommands({})) commands.push_back(completed(*command));
  return commands;
}

std::unique_ptr<Command> make_completion_command(CLI::App& program) {
  return std::make_unique<CompletionCommand>(program);
}

}  // namespace stagecraft::cli

#include <CLI/CLI.hpp>

#include "command.h"
#include "completion_model.h"
#include "failure.h"
#include "options.h"
#include "output.h"

namespace stagecraft::cli {
namespace {

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

std::unique_ptr<Command> make_completion_command(CLI::App& program) {
  return std::make_unique<CompletionCommand>(program);
}

}  // namespace stagecraft::cli

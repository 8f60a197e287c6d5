#include <CLI/CLI.hpp>
#include <csignal>

#include "command.h"
#include "failure.h"
#include "output.h"
#include "usage.h"

namespace stagecraft::cli {
namespace {

std::vector<std::unique_ptr<Command>> make_commands(CLI::App& program) {
  std::vector<std::unique_ptr<Command>> commands;
  for (auto* make :
       {make_list_command, make_schedule_command, make_lower_command, make_check_command, make_show_command,
        make_costs_command, make_profile_command, make_simulate_command, make_compare_command, make_plan_command,
        make_model_command, make_split_command, make_train_command, make_completion_command}) {
    commands.push_back(make(program));
  }
  return commands;
}

void print(const std::string& text) {
  write_output("-", [&](std::ostream& out) { out << text; });
}

int run(int argc, char** argv) {
  CLI::App program(
      "Pipeline-parallel schedules as data: make them, lower them, prove them safe, draw them, time them, plan them.\n"
      "Exported models: look into them, cut them into stages.",
      "stagecraft");
  const std::vector<std::unique_ptr<Command>> commands = make_commands(program);
  describe(program);
  std::string subject;
  try {
    if (argc > 1 && std::string_view(argv[1]) == "train") hand_over_to_trainer(argv + 2);
    program.parse(argc, argv);
    for (const auto& command : commands) {
      if (!command->parser().parsed()) continue;
      subject = command->subject();
      return command->run();
    }
    throw Failure(kUnusable, "no command given: see 'stagecraft --help'");
  } catch (const CLI::CallForHelp&) {
    print(program.help());
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
  } catch (const CLI::Error& error) {
    throw usage_failure(program, error);
  } catch (...) {
    return report_exception(subject);
  }
  return kOk;
}

}  // namespace
}  // namespace stagecraft::cli

int main(int argc, char** argv) {
  using namespace stagecraft::cli;
  // A write beyond the file size limit then fails with an error, which is handled, instead of a fatal signal.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (...) {
    return report_exception({});
  }
}

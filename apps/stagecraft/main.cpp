// The program: its commands, its help, and what it says about wrong arguments.

#include <CLI/CLI.hpp>
#include <csignal>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command.h"
#include "failure.h"
#include "output.h"
#include "stagecraft/core/identity.h"
#include "trainer.h"

namespace stagecraft::cli {
namespace {

constexpr const char* kUsageExamples =
    "Examples:\n"
    "  stagecraft schedule 1F1B --ranks 4 --microbatches 8\n"
    "  stagecraft schedule ZBVZeroBubble --ranks 4 --microbatches 8 -o zbv.svg\n"
    "  stagecraft lower schedule.csv | stagecraft check -\n"
    "  source <(stagecraft completion bash)\n"
    "\n"
    "Exit code: 0 all is well, 1 the schedule must not run, 2 wrong usage, unreadable input or unwritable output.";

std::string command_names(const CLI::App& program) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands({})) names.push_back(command->get_name());
  return fmt::format("{}", fmt::join(names, ", "));
}

/// CLI11's message, with a plainer one for "At Most 1 required but received 2".
std::string plain_text(const CLI::Error& error) {
  const std::string text = error.what();
  const bool count_is_wrong = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
  return count_is_wrong ? text.substr(0, text.find(':')) + " takes exactly one value" : text;
}

/// Reports an unknown argument first: CLI11 reports missing options first, but a misspelt option is the usual cause.
std::string what_is_wrong(const CLI::App& program, const CLI::App& command, const CLI::Error& error) {
  const std::vector<std::string> extra = program.remaining(true);
  if (extra.empty()) return plain_text(error);
  const std::string& first = extra.front();
  if (&command == &program && !first.starts_with('-')) {
    return fmt::format("'{}' is not a command: the commands are {}", first, command_names(program));
  }
  return fmt::format("'{}' is not expected here", first);
}

/// Sets help, version and the rules of the whole program. Call it after the commands are added.
void describe(CLI::App& program) {
  program.set_version_flag("--version", fmt::format("stagecraft {}", version()), "Print the version");
  program.set_help_flag("-h,--help", "Print this help");
  // At most one command: a second name is a stray word, or a file with the name of a command.
  program.require_subcommand(0, 1);
  program.footer(kUsageExamples);
  program.get_formatter()->column_width(34);
  program.get_formatter()->label("Subcommands", "Commands");
  program.get_formatter()->label("SUBCOMMAND", "COMMAND");
  for (CLI::App* command : program.get_subcommands({})) {
    command->set_help_flag("-h,--help", "Print this help");
    command->group("Commands");
  }
}

/// A one-line failure for wrong arguments, which refers to --help.
Failure usage_failure(const CLI::App& program, const CLI::Error& error) {
  const std::vector<CLI::App*> parsed = program.get_subcommands();
  const CLI::App& command = parsed.empty() ? program : *parsed.back();
  const std::string name = parsed.empty() ? "stagecraft" : "stagecraft " + command.get_name();
  return {kUnusable, fmt::format("{}: see '{} --help'", what_is_wrong(program, command, error), name)};
}

std::vector<std::unique_ptr<Command>> make_commands(CLI::App& program) {
  std::vector<std::unique_ptr<Command>> commands;
  for (auto* make :
       {make_list_command, make_schedule_command, make_lower_command, make_check_command, make_show_command,
        make_costs_command, make_profile_command, make_simulate_command, make_compare_command, make_plan_command,
        make_page_command, make_model_command, make_split_command, make_train_command, make_completion_command}) {
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

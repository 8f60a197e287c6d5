#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace stagecraft::cli {

/// One subcommand: its constructor adds it to the program's parser, its members are the targets of its options.
class Command {
 public:
  explicit Command(CLI::App* parser) : parser_(parser) {}
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  virtual ~Command() = default;

  /// Its own parser, owned by the program's.
  [[nodiscard]] const CLI::App& parser() const { return *parser_; }
  /// What errors are about: the file that is read. Empty when there is none.
  [[nodiscard]] virtual std::string subject() const { return {}; }
  /// Does the work after parsing and returns the exit code. Throws what report_exception knows.
  virtual int run() = 0;

 protected:
  CLI::App* parser_;
};

std::unique_ptr<Command> make_list_command(CLI::App& program);
std::unique_ptr<Command> make_schedule_command(CLI::App& program);
std::unique_ptr<Command> make_lower_command(CLI::App& program);
std::unique_ptr<Command> make_check_command(CLI::App& program);
std::unique_ptr<Command> make_show_command(CLI::App& program);
std::unique_ptr<Command> make_costs_command(CLI::App& program);
std::unique_ptr<Command> make_profile_command(CLI::App& program);
std::unique_ptr<Command> make_simulate_command(CLI::App& program);
std::unique_ptr<Command> make_compare_command(CLI::App& program);
std::unique_ptr<Command> make_plan_command(CLI::App& program);
std::unique_ptr<Command> make_train_command(CLI::App& program);
/// `stagecraft train` is a program of its own, which alone loads LibTorch: this process becomes it. Throws Failure when
/// it is not there.
void hand_over_to_trainer(char** arguments);
std::unique_ptr<Command> make_model_command(CLI::App& program);
std::unique_ptr<Command> make_split_command(CLI::App& program);
std::unique_ptr<Command> make_completion_command(CLI::App& program);

}  // namespace stagecraft::cli

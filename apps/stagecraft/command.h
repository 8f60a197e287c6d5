#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace stagecraft::cli {

/// One subcommand. Its constructor adds it to the program's parser; its members are the targets of its options.
class Command {
 public:
  explicit Command(CLI::App* parser) : parser_(parser) {}
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  virtual ~Command() = default;

  /// The parser of the subcommand, owned by the program's parser.
  [[nodiscard]] const CLI::App& parser() const { return *parser_; }
  /// The file that the command reads, for error messages; empty when there is none.
  [[nodiscard]] virtual std::string subject() const { return {}; }
  /// Runs the command after parsing and returns the exit code. Exceptions are reported by `report_exception`.
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
std::unique_ptr<Command> make_model_command(CLI::App& program);
std::unique_ptr<Command> make_split_command(CLI::App& program);
std::unique_ptr<Command> make_page_command(CLI::App& program);
std::unique_ptr<Command> make_completion_command(CLI::App& program);

}  // namespace stagecraft::cli

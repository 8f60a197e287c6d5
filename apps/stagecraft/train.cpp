#include <CLI/CLI.hpp>

#include "command.h"
#include "failure.h"
#include "train/options.h"

namespace stagecraft::cli {
namespace {

/// Exists only for help and completion: `main` calls `hand_over_to_trainer` before parsing.
class TrainCommand : public Command {
 public:
  explicit TrainCommand(CLI::App& program)
      : Command(program.add_subcommand("train", "Train a model exported from Python, without Python")) {
    train::add_options(*parser_, options_);
  }

  int run() override { return kInternal; }

 private:
  train::Options options_;
};

}  // namespace

std::unique_ptr<Command> make_train_command(CLI::App& program) { return std::make_unique<TrainCommand>(program); }

}  // namespace stagecraft::cli

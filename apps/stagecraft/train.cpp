#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>

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

void hand_over_to_trainer(char** arguments) {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  std::string trainer = (own.parent_path() / "stagecraft-train").string();
  std::vector<char*> all = {trainer.data()};
  for (; *arguments != nullptr; ++arguments) all.push_back(*arguments);
  all.push_back(nullptr);
  ::execv(trainer.c_str(), all.data());
  throw Failure(kUnusable, "train: cannot start '" + trainer + "': " + std::strerror(errno) +
                               ": `make build` builds it, `make install` installs it beside 'stagecraft'");
}

std::unique_ptr<Command> make_train_command(CLI::App& program) { return std::make_unique<TrainCommand>(program); }

}  // namespace stagecraft::cli

#include "saves.h"

#include <filesystem>

#include "stagecraft/runtime/together.h"

namespace stagecraft::train {

Saves::Saves(World& world, const Options& options) : world_(world), options_(options) {
  if (options.checkpoints.empty()) return;
  checkpoints_.emplace(world, CheckpointsOptions{.folder = options.checkpoints, .keep = options.keep});
}

std::optional<std::string> Saves::found() {
  if (checkpoints_) return checkpoints_->latest();
  std::string path;
  together(world_, [&] {
    if (world_.world_rank().value == 0 && std::filesystem::exists(options_.save)) path = options_.save;
    const auto during = world_.everyone().during("whether there is something to resume");
    path = world_.everyone().broadcast({{}, path}, 0).header;
  });
  return path.empty() ? std::nullopt : std::optional(path);
}

std::string Saves::save(const Pipeline& pipeline, const SaveOptions& how) {
  const std::string what = "step " + std::to_string(how.step) + " in ";
  if (checkpoints_) {
    checkpoints_->save(pipeline, how);
    return "saving " + what + options_.checkpoints;
  }
  save_checkpoint(world_, pipeline, options_.save, how);
  return "saved " + what + options_.save;
}

void Saves::finish() {
  if (checkpoints_) checkpoints_->wait();
}

}  // namespace stagecraft::train

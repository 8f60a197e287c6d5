#pragma once

#include <optional>
#include <string>

#include "options.h"
#include "stagecraft/checkpoint/checkpoints.h"

namespace stagecraft::train {

/// Where a run saves and resumes: the file of --save, or the folder of --checkpoints, which is written beside training.
/// All ranks call all functions.
class Saves {
 public:
  Saves(World& world, const Options& options);

  [[nodiscard]] bool are_wanted() const { return checkpoints_ || !options_.save.empty(); }
  /// What there is to resume from: rank 0 looks at its disk and tells the others, so that no two ranks decide
  /// differently.
  [[nodiscard]] std::optional<std::string> found();
  /// Returns what was saved where, for the user.
  std::string save(const Pipeline& pipeline, const SaveOptions& how);
  /// Waits for what is written beside training.
  void finish();

 private:
  World& world_;
  const Options& options_;
  std::optional<Checkpoints> checkpoints_;
};

}  // namespace stagecraft::train

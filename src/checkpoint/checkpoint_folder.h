#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

/// The files of a run's checkpoints in their folder. All functions throw FileError.
namespace stagecraft {

struct CheckpointFile {
  std::int64_t step = 0;
  std::string path;
};

class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::string path) : path_(std::move(path)) {}
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  /// Makes the folder, and those above it, if it does not exist.
  void make() const;
  /// Locks the folder against other runs, as long as this object lives, and removes what killed ones have left
  /// unfinished. A run that is about to end has `patience` to do so. Does nothing the second time.
  void take(std::chrono::milliseconds patience);

  /// "folder/step-120.safetensors".
  [[nodiscard]] std::string path_of(std::int64_t step) const;
  /// The complete checkpoints, by step.
  [[nodiscard]] std::vector<CheckpointFile> files() const;
  /// Removes all but the last `keep`; 0: none.
  void remove_old(int keep) const;

 private:
  void remove_unfinished() const;

  std::string path_;
  int lock_ = -1;
};

}  // namespace stagecraft

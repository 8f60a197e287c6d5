#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "stagecraft/checkpoint/checkpoint.h"

namespace stagecraft {

struct CheckpointsOptions {
  /// Where rank 0 writes; it is made if it does not exist. It belongs to one run at a time: what a killed run has left
  /// unfinished there is removed. Only that of rank 0 counts.
  std::string folder = {};
  /// How many checkpoints are kept; 0: all.
  int keep = 3;
  /// Whether training goes on while a checkpoint is written.
  bool background = true;
};

/// The checkpoints of a run: step-<number>.safetensors in one folder, each as save_checkpoint writes it. All ranks make
/// it and call its functions in the same order.
///
/// `save` copies what the file will hold to host memory, and returns: training may change everything at once. A thread
/// of rank 0 beside training fetches the copies of the other ranks, a few at a time, and writes the file, which appears
/// whole or not at all. A step that fails meanwhile does not harm it. Each rank keeps the memory of its copies for the
/// next save.
class Checkpoints {
 public:
  /// The world must outlive it. Throws InvalidArgument or FileError on all ranks.
  Checkpoints(World& world, CheckpointsOptions options);
  /// Waits, on rank 0, until the file is complete; prints an error that no `save` or `wait` has thrown.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Saves under the number `options.step`; replaces a checkpoint of that number. Waits first for the save before, if
  /// it is not done. When the file is complete, the oldest ones beyond `keep` are removed.
  ///
  /// Throws on all ranks, and saves nothing: FileError, if the save before has failed in the background, or if the
  /// folder has a checkpoint of a later step, with which a resumed run would go on, or belongs to another run;
  /// InvalidArgument like save_checkpoint.
  void save(const Pipeline& pipeline, const SaveOptions& options);
  /// Returns when the last save is complete. Throws FileError on all ranks if it has failed; older files are then as
  /// they were.
  void wait();

  /// The path of the checkpoint with the largest step, as rank 0 finds it; none if there is none. Waits first, like
  /// `wait`.
  [[nodiscard]] std::optional<std::string> latest();
  /// Loads it with load_checkpoint, and returns the step; none if there is none, and nothing is changed.
  std::optional<std::int64_t> load_latest(Pipeline& pipeline, const LoadOptions& options = {});

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft

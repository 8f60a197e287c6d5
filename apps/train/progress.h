#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "options.h"
#include "step_log.h"

namespace stagecraft::train {

/// Tells the user how far a run has come, on the rank that speaks. On a terminal it is one line that is rewritten,
/// otherwise a line every so many steps (--report).
class Progress {
 public:
  Progress(const Options& options, bool speaks);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// Before the first step of a run that has done `steps` steps.
  void begin(std::int64_t steps);
  void step(std::int64_t step, double loss, std::optional<double> eval_loss);
  /// Prints a line, which stays.
  void say(const std::string& line);

 private:
  void end_rewritten_line();

  const Options& options_;
  bool speaks_;
  bool rewrites_;
  bool is_in_line_ = false;  // the cursor is behind a line that is rewritten
  std::int64_t first_ = 0;
  double start_ = 0;
  double last_shown_ = 0;
  std::unique_ptr<StepLog> losses_;
};

}  // namespace stagecraft::train

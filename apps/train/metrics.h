#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "options.h"
#include "stagecraft/runtime/pipeline.h"
#include "step_log.h"

namespace stagecraft::train {

/// What is known of one step, on one rank or on all.
struct StepFacts {
  std::int64_t step = 0;
  double loss = 0;
  std::optional<double> eval_loss;
  double gradient_norm = 0;
  double learning_rate = 0;
  std::int64_t rows_taken = 0;  ///< Rows read since the run began.
  double rows_per_second = 0;
  double tokens_per_second = 0;  ///< 0 if the rows are not of tokens.
};

/// Writes what is known of each step as a line of JSON. All ranks have one; rank 0 writes.
class Metrics {
 public:
  /// Recording costs little time, but a message per step.
  Metrics(World& world, Pipeline& pipeline, const Options& options);

  [[nodiscard]] bool is_on() const { return is_on_; }
  /// Before the first step of a run that has done `steps` steps. See StepLog.
  void begin(std::int64_t steps);
  /// Called after each batch of an update, with the seconds that Pipeline::step took on this rank.
  void add_batch(double seconds);
  /// Called by all ranks after the update.
  void end_step(const StepFacts& facts);

 private:
  World& world_;
  Pipeline& pipeline_;
  const Options& options_;
  bool is_on_;
  std::unique_ptr<StepLog> log_;
  double busy_ = 0;     // seconds of this rank in this step
  double seconds_ = 0;  // that the step took
};

}  // namespace stagecraft::train

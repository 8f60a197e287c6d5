#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "judgement.h"

namespace stagecraft::cli {

/// Everything `check` says of a file. What cannot be known of a broken schedule is left empty.
struct CheckReport {
  std::string file;
  Judgement judgement;
  std::vector<CommModel> models;  ///< Those asked for.

  int ranks = 0;
  bool lowered = false;
  std::int64_t actions = 0;
  std::int64_t idle_slots = 0;

  // Unknown when stages and ranks do not fit together.
  std::optional<int> stages;
  std::optional<int> microbatches;
  std::string placement;

  // Unknown when the schedule cannot run under any model.
  std::optional<int> steps;
  std::vector<int> peak_live;  ///< Per rank.

  [[nodiscard]] bool ok() const { return judgement.refusal(models) == nullptr; }
  /// Slots of the step simulation in which a rank has nothing to do; known when `steps` is.
  [[nodiscard]] std::int64_t idle_rank_steps() const { return rank_steps() - actions; }
  [[nodiscard]] std::int64_t rank_steps() const { return std::int64_t{steps.value_or(0)} * ranks; }
  [[nodiscard]] double idle_percent() const;
};

/// Never throws on a bad schedule: that is what it reports.
CheckReport examine(std::string file, std::vector<Row> rows, std::vector<CommModel> models);

void write_report(std::ostream& out, const CheckReport& report);
void write_json_report(std::ostream& out, const CheckReport& report);

}  // namespace stagecraft::cli

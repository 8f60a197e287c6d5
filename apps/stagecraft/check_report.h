#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "failure.h"
#include "report_text.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/schedule.h"

/// What the command says about a user's schedule: whether it can run, and what it costs.
namespace stagecraft::cli {

/// The verdict on a schedule of a user. A compute-only schedule has no messages, so if it has no fault, a copy lowered
/// by `send_recv` is verified under the three models instead.
struct Judgement {
  Verdict verdict;
  /// Whether ranks and steps of the verdict refer to the lowered copy.
  bool of_lowered_copy = false;

  /// The first refusal under any of these models; null when all are safe.
  [[nodiscard]] const Refusal* refusal(std::span<const CommModel> models) const;
  /// The failure to throw for a refusal.
  [[nodiscard]] Failure failure(const std::string& subject, const Refusal& refusal) const;
};

Judgement judge(const Schedule& schedule);

/// "as it stands" or "after send_recv".
std::string_view judged_form(const Judgement& judgement);

/// Everything that `check` reports about a file. Values that a broken schedule does not have are left empty.
struct CheckReport {
  std::string file;
  Judgement judgement;
  std::vector<CommModel> models;  ///< The requested models.

  int ranks = 0;
  bool lowered = false;
  std::int64_t actions = 0;
  std::int64_t idle_slots = 0;

  // Unknown when no placement can be derived from the rows.
  std::optional<int> stages;
  std::optional<int> microbatches;
  std::string placement;

  // Unknown when the schedule cannot run under any model.
  std::optional<int> steps;
  std::vector<int> peak_live;  ///< Per rank.

  [[nodiscard]] bool ok() const { return judgement.refusal(models) == nullptr; }
  /// Rank-steps of the step simulation without an action; valid when `steps` is known.
  [[nodiscard]] std::int64_t idle_rank_steps() const { return rank_steps() - actions; }
  [[nodiscard]] std::int64_t rank_steps() const { return std::int64_t{steps.value_or(0)} * ranks; }
  [[nodiscard]] double idle_percent() const;
};

/// Does not throw for an invalid schedule; the report holds the refusal.
CheckReport examine(std::string file, std::vector<Row> rows, std::vector<CommModel> models);

void write_report(std::ostream& out, const CheckReport& report);
Json to_json(const CheckReport& report);

/// Its text; null for an idle slot.
Json action_json(const Action& action);
/// Who waits for whom.
Json cycle_json(const std::vector<Waiting>& cycle);

}  // namespace stagecraft::cli

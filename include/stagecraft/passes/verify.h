#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/core/comm_model.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/schedule.h"

/// Proof that a schedule can run, or the reason why not.
namespace stagecraft {

/// One link of a chain of waiting ranks: `rank` stands at `action` and cannot pass before `on_action`, which stands
/// later on `on_rank`.
struct Waiting {
  RankId rank;
  int step;
  Action action;
  RankId on_rank;
  int on_step;
  Action on_action;
};

/// Why a schedule must not run. `message` is one line: where, what, the rule and the remedy.
struct Refusal {
  std::string message;
  RankId rank;
  int step = -1;  ///< -1 when the fault is an action that is missing.
  Action action;
  std::vector<Waiting> cycle;  ///< Ranks waiting for each other, each for the next, the last for the first.
  std::string excerpt;         ///< The part of the table around the fault, several lines.

  /// Message, cycle and excerpt.
  [[nodiscard]] std::string full_text() const;
};

struct Verdict {
  bool lowered = false;
  /// A fault under every model: missing, repeated or misplaced actions, an order that no rank could follow.
  std::optional<Refusal> fault;
  /// Per CommModel; meaningful when there is no fault. A compute-only schedule has no communication to refuse.
  std::array<std::optional<Refusal>, 3> by_model;

  [[nodiscard]] bool ok() const;
  [[nodiscard]] bool ok(CommModel model) const { return refusal(model) == nullptr; }
  /// The fault, or the refusal under this model; null when it is safe.
  [[nodiscard]] const Refusal* refusal(CommModel model) const;
  /// The first of fault and refusals; null when everything holds.
  [[nodiscard]] const Refusal* first_refusal() const;
};

/// Checks that every F and every B (or I then W) of every stage and microbatch stands exactly once, on the right rank,
/// in an order that can execute across ranks; that SENDs and RECVs pair up; that UNSHARD, RESHARD and REDUCE_GRAD are
/// where they belong; and freedom from deadlock in the three models. Linear in the number of actions. Never throws on a
/// bad schedule.
Verdict verify(const Schedule& schedule);

/// Throws ScheduleError with the full text of the refusal unless the schedule is safe under `model`.
void require_valid(const Schedule& schedule, CommModel model = CommModel::kRendezvous);

}  // namespace stagecraft

#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/core/comm_model.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/schedule.h"

/// Verification that a schedule can run, with the reason if it cannot.
namespace stagecraft {

/// One link of a chain of waiting ranks: `rank` is blocked at `action` until `on_rank` has run `on_action`.
struct Waiting {
  RankId rank;
  int step;
  Action action;
  RankId on_rank;
  int on_step;
  Action on_action;
};

/// Why a schedule must not run. `message` is one line: rank and step, action, rule and remedy.
struct Refusal {
  std::string message;
  RankId rank;
  int step = -1;  ///< -1 when the fault is an action that is missing.
  Action action;
  std::vector<Waiting> cycle;  ///< For a deadlock: each rank waits for the next, the last for the first.
  std::string excerpt;         ///< The part of the table around the fault, several lines.

  /// Message, cycle and excerpt.
  [[nodiscard]] std::string full_text() const;
};

struct Verdict {
  bool lowered = false;
  /// A fault under every model: missing, repeated or misplaced actions, or an order that cannot be executed.
  std::optional<Refusal> fault;
  /// Per CommModel; set only when there is no fault. Always empty for a schedule without SEND and RECV.
  std::array<std::optional<Refusal>, 3> by_model;

  [[nodiscard]] bool ok() const;
  [[nodiscard]] bool ok(CommModel model) const { return refusal(model) == nullptr; }
  /// The fault, or the refusal under this model; null when the schedule is safe under the model.
  [[nodiscard]] const Refusal* refusal(CommModel model) const;
  /// The fault or the first refusal; null when there is none.
  [[nodiscard]] const Refusal* first_refusal() const;
};

/// Checks that every F and every B (or I then W) of every stage and microbatch occurs exactly once, on the right rank,
/// in an order that can execute across ranks; that SENDs and RECVs match; that UNSHARD, RESHARD and REDUCE_GRAD are in
/// valid places; and that none of the three models can deadlock. Takes time linear in the number of actions. Does not
/// throw for an invalid schedule.
Verdict verify(const Schedule& schedule);

/// Throws ScheduleError with the fault's message if the schedule has a fault. It may still deadlock under some models.
void require_sound(const Schedule& schedule);

/// Throws ScheduleError with the full text of the refusal unless the schedule is safe under `model`.
void require_valid(const Schedule& schedule, CommModel model = CommModel::kRendezvous);

}  // namespace stagecraft

#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/schedule.h"

/// Proof that a schedule can run, or the reason why not.
namespace stagecraft {

/// How messages behave, from the most forgiving to the strictest. What is safe under a later one is safe under all
/// before.
enum class CommModel {
  kTagged,      ///< Non-blocking, matched by tag (MPI, ranks as threads).
  kInOrder,     ///< Non-blocking, matched by order alone per directed pair of ranks (NCCL).
  kRendezvous,  ///< SEND and RECV each block until the other side arrives.
};
inline constexpr std::array<CommModel, 3> kCommModels = {CommModel::kTagged, CommModel::kInOrder,
                                                         CommModel::kRendezvous};
/// "tagged", "in_order", "rendezvous".
std::string_view model_name(CommModel model);

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

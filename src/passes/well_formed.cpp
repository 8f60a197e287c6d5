#include "well_formed.h"

#include <algorithm>

#include "refusals.h"
#include "stagecraft/schedule/action_text.h"

namespace stagecraft::detail {
namespace {

/// Whether the plain action names what exists, where it is. Every action of every pass goes through this.
bool fits(const Placement& placement, int microbatches, const Action& action, RankId rank) {
  if (!placement.contains(action.stage()) || placement.rank_of(action.stage()) != rank) return false;
  if (!has_microbatch(action.kind())) return true;
  if (action.microbatch().value < 0 || action.microbatch().value >= microbatches) return false;
  if (!is_communication(action.kind())) return true;
  const StageId peer = peer_stage(action);
  return placement.contains(peer) && placement.rank_of(peer) != rank;
}

/// Why a plain action does not fit.
std::string misfit(const Schedule& schedule, const Action& action, RankId rank) {
  if (!schedule.placement.contains(action.stage())) {
    return "there are only stages 0 to " + std::to_string(schedule.stages() - 1);
  }
  const RankId home = schedule.placement.rank_of(action.stage());
  if (home != rank) return "its stage lives on rank " + std::to_string(home.value) + ": move the action there";
  if (has_microbatch(action.kind()) &&
      (action.microbatch().value < 0 || action.microbatch().value >= schedule.microbatches)) {
    return "only microbatches 0 to " + std::to_string(schedule.microbatches - 1) + " are computed";
  }
  if (!schedule.placement.contains(peer_stage(action))) return "there is no stage to exchange it with: remove it";
  return "both stages live on this rank, where tensors are handed over without a message: remove it";
}

/// The smallest microbatch that the stage, which has `count` forwards, does not run.
int first_missing_forward(const Schedule& schedule, StageId stage, std::size_t count) {
  std::vector<bool> present(count + 1, false);
  for (const Action& action : schedule.rows[schedule.placement.rank_of(stage).index()]) {
    for_each_part(action, [&](const Action& part) {
      if (part.kind() != ActionKind::kForward || part.stage() != stage) return;
      if (part.microbatch().index() < present.size()) present[part.microbatch().index()] = true;
    });
  }
  return static_cast<int>(std::find(present.begin(), present.end(), false) - present.begin());
}

std::optional<Refusal> check_forward_counts(const Schedule& schedule, const std::vector<std::size_t>& forwards) {
  const auto needed = static_cast<std::size_t>(schedule.microbatches);
  for (int s = 0; s < schedule.stages(); ++s) {
    const std::size_t count = forwards[static_cast<std::size_t>(s)];
    if (count >= needed) continue;
    const MicrobatchId missing(first_missing_forward(schedule, StageId(s), count));
    return refuse_missing(schedule, schedule.placement.rank_of(StageId(s)), Action::forward(StageId(s), missing),
                          "stage " + std::to_string(s) + " has " + std::to_string(count) + " forwards for " +
                              std::to_string(needed) + " microbatches, and every stage runs every microbatch once");
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> check_well_formed(const Schedule& schedule) {
  if (schedule.ranks() != schedule.placement.ranks() || schedule.stages() < 1 || schedule.microbatches < 1) {
    return refuse_missing(schedule, RankId(0), Action::idle(),
                          "a schedule has a row per rank of its placement, a stage and a microbatch, not " +
                              std::to_string(schedule.ranks()) + " rows, " +
                              std::to_string(schedule.placement.ranks()) + " ranks, " +
                              std::to_string(schedule.stages()) + " stages and " +
                              std::to_string(schedule.microbatches) + " microbatches");
  }
  std::vector<std::size_t> forwards(static_cast<std::size_t>(schedule.stages()), 0);
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    const RankId rank(r);
    const Row& row = schedule.rows[r];
    bool idle = true;
    const auto fits_here = [&](const Action& part) {
      idle = false;
      if (!fits(schedule.placement, schedule.microbatches, part, rank)) return false;
      forwards[part.stage().index()] += part.kind() == ActionKind::kForward;
      return true;
    };
    for (std::size_t step = 0; step < row.size(); ++step) {
      const Action& action = row[step];
      if (action.is_idle()) continue;
      if (!fits_here(action.first())) return refuse_at(schedule, rank, step, misfit(schedule, action.first(), rank));
      if (action.is_overlap() && !fits_here(action.second())) {
        return refuse_at(schedule, rank, step, misfit(schedule, action.second(), rank));
      }
    }
    if (idle) {
      return refuse_missing(schedule, rank, Action::idle(),
                            "every rank has a stage to run, so fill the row or remove it");
    }
  }
  return check_forward_counts(schedule, forwards);
}

void require_well_formed(const Schedule& schedule, std::string_view pass) {
  if (const auto refusal = check_well_formed(schedule)) {
    throw ScheduleError(std::string(pass) + ": " + refusal->message, refusal->rank, refusal->step,
                        to_text(refusal->action));
  }
}

void require_none(const Schedule& schedule, std::string_view pass, bool (*refused)(ActionKind),
                  std::string_view remedy) {
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    for (std::size_t step = 0; step < schedule.rows[r].size(); ++step) {
      if (!refused(schedule.rows[r][step].kind())) continue;
      const Refusal refusal = refuse_at(schedule, RankId(r), step, std::string(remedy));
      throw ScheduleError(std::string(pass) + ": " + refusal.message, refusal.rank, refusal.step,
                          to_text(refusal.action));
    }
  }
}

}  // namespace stagecraft::detail

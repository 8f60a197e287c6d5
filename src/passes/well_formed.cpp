#include "well_formed.h"

#include <algorithm>

#include "refusals.h"
#include "stagecraft/schedule/action_text.h"

namespace stagecraft::detail {
namespace {

/// Forwards per stage; actions that do not fit are left out.
std::vector<std::uint32_t> count_forwards(const Schedule& schedule) {
  std::vector<std::uint32_t> forwards(static_cast<std::size_t>(schedule.stages()), 0);
  for (const Row& row : schedule.rows) {
    for (const Action& action : row) {
      for_each_part(action, [&](const Action& part) {
        if (part.kind() == ActionKind::kForward && schedule.placement.contains(part.stage())) {
          ++forwards[part.stage().index()];
        }
      });
    }
  }
  return forwards;
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

std::optional<Refusal> check_forward_counts(const Schedule& schedule, const std::vector<std::uint32_t>& forwards) {
  const auto needed = static_cast<std::size_t>(schedule.microbatches);
  for (int s = 0; s < schedule.stages(); ++s) {
    const std::size_t count = forwards[static_cast<std::size_t>(s)];
    if (count >= needed) continue;
    const MicrobatchId missing(first_missing_forward(schedule, StageId(s), count));
    return refuse_missing(schedule.placement.rank_of(StageId(s)), Action::forward(StageId(s), missing),
                          "stage " + std::to_string(s) + " has " + std::to_string(count) + " forwards for " +
                              std::to_string(needed) + " microbatches, and every stage runs every microbatch once");
  }
  return std::nullopt;
}

}  // namespace

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

std::optional<Refusal> check_extent(const Schedule& schedule) {
  if (schedule.ranks() != schedule.placement.ranks() || schedule.stages() < 1 || schedule.microbatches < 1) {
    return refuse_missing(RankId(0), Action::idle(),
                          "a schedule has a row per rank of its placement, a stage and a microbatch, not " +
                              std::to_string(schedule.ranks()) + " rows, " +
                              std::to_string(schedule.placement.ranks()) + " ranks, " +
                              std::to_string(schedule.stages()) + " stages and " +
                              std::to_string(schedule.microbatches) + " microbatches");
  }
  std::int64_t parts = 0;
  for (const Row& row : schedule.rows) parts += 2 * static_cast<std::int64_t>(row.size());
  if (std::int64_t{schedule.stages()} * schedule.microbatches <= parts) return std::nullopt;
  return check_forwards(schedule);
}

std::optional<Refusal> check_forwards(const Schedule& schedule) {
  return check_forward_counts(schedule, count_forwards(schedule));
}

void throw_for_pass(std::string_view pass, const Refusal& refusal) {
  throw ScheduleError(std::string(pass) + ": " + refusal.message, refusal.rank, refusal.step, to_text(refusal.action));
}

void throw_at(const Schedule& schedule, std::string_view pass, RankId rank, const Action& action,
              std::string_view remedy) {
  const Fit fits(schedule);
  std::string why(remedy);
  for_each_part(action, [&](const Action& part) {
    if (!fits(part, rank)) why = misfit(schedule, part, rank);
  });
  const auto step = static_cast<std::size_t>(&action - schedule.rows[rank.index()].data());
  throw_for_pass(pass, refuse_at(schedule, rank, step, why));
}

std::optional<Refusal> check_counts(const Schedule& schedule, const std::vector<std::uint32_t>& forwards,
                                    const std::vector<bool>& is_busy) {
  const auto idle = std::find(is_busy.begin(), is_busy.end(), false);
  if (idle != is_busy.end()) return refuse_empty_rank(RankId(idle - is_busy.begin()));
  return check_forward_counts(schedule, forwards);
}

}  // namespace stagecraft::detail

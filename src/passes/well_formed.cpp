#include "well_formed.h"

#include <algorithm>
#include <atomic>

#include "checks.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/in_parts.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft::detail {
namespace {

/// Forwards per stage; stages outside the placement are left out.
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

/// The smallest microbatch without a forward on the stage, which has `count` forwards.
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

namespace {

[[noreturn]] void throw_for_pass(std::string_view pass, const Refusal& refusal) {
  throw ScheduleError(std::string(pass) + ": " + refusal.message, refusal.rank, refusal.step, to_text(refusal.action));
}

[[noreturn]] void throw_at(const Schedule& schedule, std::string_view pass, RankId rank, const Action& action,
                           std::string_view why) {
  const auto step = static_cast<std::size_t>(&action - schedule.rows[rank.index()].data());
  throw_for_pass(pass, refuse_at(schedule, rank, step, std::string(why)));
}

/// Counts a row's forwards by stage and returns its kinds. Throws ScheduleError at an action that does not fit, or when
/// the row has no action.
KindSet take_census(const Schedule& schedule, std::string_view pass, RankId rank, std::uint32_t* forwards) {
  const Fit fits(schedule);
  KindSet kinds = 0;
  for (const Action& action : schedule.rows[rank.index()]) {
    kinds |= kind_bit(action.kind());
    if (action.is_idle()) continue;
    for_each_part(action, [&](const Action& part) {
      if (!fits(part, rank)) throw_at(schedule, pass, rank, action, misfit(schedule, part, rank));
      kinds |= kind_bit(part.kind());
      forwards[part.stage().index()] += part.kind() == ActionKind::kForward ? 1 : 0;
    });
  }
  if ((kinds & ~kind_bit(ActionKind::kIdle)) == 0) throw_for_pass(pass, refuse_empty_rank(rank));
  return kinds;
}

}  // namespace

KindSet kinds_in(const Schedule& schedule) {
  KindSet kinds = 0;
  for (const Row& row : schedule.rows) {
    for (const Action& action : row) kinds |= kind_bit(action.kind());
  }
  return kinds;
}

KindSet require_well_formed(const Schedule& schedule, std::string_view pass) {
  if (const auto refusal = check_extent(schedule)) throw_for_pass(pass, *refusal);
  std::vector<std::uint32_t> forwards(static_cast<std::size_t>(schedule.stages()), 0);
  std::atomic<KindSet> kinds = 0;
  in_parts(schedule.rows.size(), schedule.slots(), [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) kinds |= take_census(schedule, pass, RankId(r), forwards.data());
  });
  if (const auto refusal = check_forward_counts(schedule, forwards)) throw_for_pass(pass, *refusal);
  return kinds;
}

void throw_for_kind(const Schedule& schedule, std::string_view pass, KindSet refused, std::string_view remedy) {
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    for (const Action& action : schedule.rows[r]) {
      if ((kind_bit(action.kind()) & refused) != 0) throw_at(schedule, pass, RankId(r), action, remedy);
    }
  }
  throw InternalError(std::string(pass) + ": no action of a refused kind stands in the schedule");
}

}  // namespace stagecraft::detail

#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "stagecraft/passes/verify.h"

/// What every pass and proof relies on before it indexes anything.
namespace stagecraft::detail {

/// Whether plain actions name what exists, where it is: their stage, on this rank; their microbatch; for a message, a
/// neighbour stage on another rank. Every action of every pass goes through this, so it keeps what it needs at hand.
class Fit {
 public:
  explicit Fit(const Schedule& schedule)
      : ranks_(schedule.placement.ranks_of_stages()),
        microbatches_(static_cast<std::uint32_t>(schedule.microbatches)) {}

  bool operator()(const Action& action, RankId rank) const {
    const ActionKind kind = action.kind();
    const std::size_t stage = action.stage().index();
    if (stage >= ranks_.size() || ranks_[stage] != rank) return false;
    if (!has_microbatch(kind)) return true;
    if (static_cast<std::uint32_t>(action.microbatch().value) >= microbatches_) return false;
    if (!is_communication(kind)) return true;
    const std::size_t peer = peer_stage(action).index();  // stage -1 becomes huge
    return peer < ranks_.size() && ranks_[peer] != rank;
  }

 private:
  std::span<const RankId> ranks_;
  std::uint32_t microbatches_;
};

/// Why a plain action does not fit.
std::string misfit(const Schedule& schedule, const Action& action, RankId rank);

/// Row count and placement agree, and a table over stages times microbatches is no larger than the schedule itself:
/// where it would be, forwards are missing, and the refusal names the first.
std::optional<Refusal> check_extent(const Schedule& schedule);

/// Null, or the first forward that is missing.
std::optional<Refusal> check_forwards(const Schedule& schedule);

/// Throws what a pass throws: the refusal, with the pass's name.
[[noreturn]] void throw_for_pass(std::string_view pass, const Refusal& refusal);
/// At an action that does not fit or that the pass does not take.
[[noreturn]] void throw_at(const Schedule& schedule, std::string_view pass, RankId rank, const Action& action,
                           std::string_view remedy);
/// Null, or what is missing: a rank without actions, a stage without its forwards.
std::optional<Refusal> check_counts(const Schedule& schedule, const std::vector<std::uint32_t>& forwards,
                                    const std::vector<bool>& is_busy);

/// For a pass: throws ScheduleError unless the extent is sound, every action fits, every rank and stage has its actions
/// and no action is of a kind for which `refused` holds.
template <typename Refused>
void require_well_formed(const Schedule& schedule, std::string_view pass, Refused refused, std::string_view remedy) {
  if (const auto refusal = check_extent(schedule)) throw_for_pass(pass, *refusal);
  const Fit fits(schedule);
  std::vector<std::uint32_t> forwards(static_cast<std::size_t>(schedule.stages()), 0);
  std::vector<bool> is_busy(schedule.rows.size(), false);
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    bool busy = false;
    for (const Action& action : schedule.rows[r]) {
      if (action.is_idle()) continue;
      busy = true;
      for_each_part(action, [&](const Action& part) {
        if (!fits(part, RankId(r)) || refused(part.kind())) throw_at(schedule, pass, RankId(r), action, remedy);
        forwards[part.stage().index()] += part.kind() == ActionKind::kForward;
      });
    }
    is_busy[r] = busy;
  }
  if (const auto refusal = check_counts(schedule, forwards, is_busy)) throw_for_pass(pass, *refusal);
}
inline void require_well_formed(const Schedule& schedule, std::string_view pass) {
  require_well_formed(
      schedule, pass, [](ActionKind) { return false; }, "");
}

}  // namespace stagecraft::detail

#pragma once

#include <optional>
#include <span>
#include <string_view>

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

/// For a pass: throws ScheduleError unless the extent is sound, every action fits, every stage has its forwards and no
/// action is of a kind for which `refused` holds.
void require_well_formed(const Schedule& schedule, std::string_view pass, bool (*refused)(ActionKind),
                         std::string_view remedy);
inline void require_well_formed(const Schedule& schedule, std::string_view pass) {
  require_well_formed(
      schedule, pass, [](ActionKind) { return false; }, "");
}

}  // namespace stagecraft::detail

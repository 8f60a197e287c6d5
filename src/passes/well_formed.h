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

/// A set of kinds of action.
using KindSet = std::uint16_t;
constexpr KindSet kind_bit(ActionKind kind) { return static_cast<KindSet>(1U << static_cast<unsigned>(kind)); }
template <typename Holds>
constexpr KindSet kinds_where(Holds holds) {
  KindSet set = 0;
  for (int k = 0; k < kActionKinds; ++k) {
    const auto kind = static_cast<ActionKind>(k);
    if (holds(kind)) set = static_cast<KindSet>(set | kind_bit(kind));
  }
  return set;
}

/// The kinds that stand in the rows, idle included; of an overlap, the overlap alone.
KindSet kinds_in(const Schedule& schedule);

/// For a pass: throws ScheduleError unless the extent is sound, every action fits, and every rank and stage has its
/// actions. Returns the kinds that stand in the rows.
KindSet require_well_formed(const Schedule& schedule, std::string_view pass);

/// Throws at the first action of a refused kind.
[[noreturn]] void throw_for_kind(const Schedule& schedule, std::string_view pass, KindSet refused,
                                 std::string_view remedy);

}  // namespace stagecraft::detail

#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "stagecraft/passes/verify.h"

/// Checks that every pass and the verifier need before they index tables by stage or microbatch.
namespace stagecraft::detail {

/// Checks whether a plain action fits the schedule: its stage exists and is on this rank, its microbatch exists, and
/// for a message the peer stage is on another rank. On the hot path of every pass.
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
    const std::size_t peer = peer_stage(action).index();  // stage -1 wraps to a huge index
    return peer < ranks_.size() && ranks_[peer] != rank;
  }

 private:
  std::span<const RankId> ranks_;
  std::uint32_t microbatches_;
};

/// Why a plain action does not fit.
std::string misfit(const Schedule& schedule, const Action& action, RankId rank);

/// Checks that the row count matches the placement and that a table of stages times microbatches is not larger than the
/// schedule itself. If it is, forwards are missing, and the refusal names the first.
std::optional<Refusal> check_extent(const Schedule& schedule);

/// A refusal that names the first missing forward, or null.
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

/// The kinds of action in the rows, including idle. An overlap counts as kOverlap, not as its halves.
KindSet kinds_in(const Schedule& schedule);

/// For a pass: throws ScheduleError unless check_extent passes, every action fits, every rank has an action and every
/// stage all its forwards. Returns the kinds of action in the rows, including those of the halves of overlaps.
KindSet require_well_formed(const Schedule& schedule, std::string_view pass);

/// Throws ScheduleError at the first action of a refused kind.
[[noreturn]] void throw_for_kind(const Schedule& schedule, std::string_view pass, KindSet refused,
                                 std::string_view remedy);

}  // namespace stagecraft::detail

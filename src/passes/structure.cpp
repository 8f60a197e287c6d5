#include "structure.h"

#include <algorithm>
#include <array>

#include "refusals.h"
#include "stagecraft/schedule/stage_microbatch_table.h"
#include "well_formed.h"

namespace stagecraft::detail {
namespace {

using Bits = std::uint16_t;

/// One bit per kind that a (stage, microbatch) can have once.
constexpr Bits bit(ActionKind kind) { return static_cast<Bits>(1U << static_cast<unsigned>(kind)); }
constexpr Bits kForward = bit(ActionKind::kForward);
constexpr Bits kInput = bit(ActionKind::kBackwardInput);
constexpr Bits kWeight = bit(ActionKind::kBackwardWeight);
/// Left by B and by I alike. (An overlap leaves the bits of its halves, so its own bit is free.)
constexpr Bits kGradient = bit(ActionKind::kOverlap);

/// What must and must not have happened to a stage's microbatch before an action of a kind, and what the action leaves.
struct Rule {
  Bits needed = 0;
  Bits forbidden = 0;
  Bits leaves = 0;
  const char* missing = nullptr;  // said when what is needed is not there
};

constexpr std::array<Rule, kActionKinds> make_rules() {
  constexpr const char* kNothingToSend = "there is nothing to send yet";
  std::array<Rule, kActionKinds> rules;
  const auto set = [&](ActionKind kind, Bits needed, Bits forbidden, Bits leaves, const char* missing) {
    rules[static_cast<std::size_t>(kind)] = {needed, static_cast<Bits>(forbidden | bit(kind)),
                                             static_cast<Bits>(leaves | bit(kind)), missing};
  };
  set(ActionKind::kForward, 0, 0, 0, nullptr);
  for (const ActionKind kind : {ActionKind::kBackward, ActionKind::kBackwardInput}) {
    set(kind, kForward, kGradient, kGradient, "its F does not stand before it: a backward comes after the forward");
  }
  set(ActionKind::kBackwardWeight, kInput, 0, 0,
      "its I does not stand before it: W comes after the I of the same microbatch");
  set(ActionKind::kSendForward, kForward, 0, 0, kNothingToSend);
  set(ActionKind::kSendBackward, kGradient, 0, 0, kNothingToSend);
  set(ActionKind::kRecvForward, 0, 0, 0, nullptr);
  set(ActionKind::kRecvBackward, 0, 0, 0, nullptr);
  return rules;
}
constexpr std::array<Rule, kActionKinds> kRules = make_rules();

/// Stands for the reason that `misfit` finds out.
constexpr const char* kDoesNotFit = "it does not fit";

enum class Sharding : std::uint8_t { kNone, kUnsharded, kSharded };

struct StageState {
  Sharding sharding = Sharding::kNone;
  bool reduced = false;
  int computes = 0;
  int forwards = 0;
  int weight_parts = 0;
};

class Structure {
 public:
  Structure(const Schedule& schedule, bool communicates)
      : schedule_(schedule),
        placement_(schedule.placement),
        communicates_(communicates),
        fits_(schedule),
        past_(schedule),
        stages_(static_cast<std::size_t>(schedule.stages())) {}

  std::optional<Refusal> run() {
    for (std::size_t r = 0; r < schedule_.rows.size(); ++r) {
      const RankId rank(r);
      const Row& row = schedule_.rows[r];
      bool idle = true;
      for (std::size_t i = 0; i < row.size(); ++i) {
        const Action& action = row[i];
        if (action.is_idle()) continue;
        idle = false;
        const char* why = action.is_overlap() ? take_halves(action, rank) : take(action, rank);
        if (why == kDoesNotFit) return refuse_misfit(action, rank, i);
        if (why != nullptr) return refuse_for(why, rank, i);
      }
      if (idle) return refuse_empty_rank(rank);
    }
    return check_completeness();
  }

 private:
  const char* take_halves(const Action& overlap, RankId rank) {
    if (overlap.first().stage() == overlap.second().stage() &&
        overlap.first().microbatch() == overlap.second().microbatch()) {
      return "both halves are of one stage and microbatch: a backward cannot run together with its own forward, so "
             "write "
             "them apart";
    }
    const char* why = take(overlap.first(), rank);
    return why != nullptr ? why : take(overlap.second(), rank);
  }

  /// A forward that stands nowhere is the root of whatever else goes wrong for want of it.
  [[nodiscard]] Refusal refuse_for(const char* why, RankId rank, std::size_t step) const {
    if (auto missing = check_forwards(schedule_)) return *missing;
    return refuse_at(schedule_, rank, step, why);
  }

  [[nodiscard]] Refusal refuse_misfit(const Action& action, RankId rank, std::size_t step) const {
    const Action part = fits_(action.first(), rank) ? action.second() : action.first();
    return refuse_at(schedule_, rank, step, misfit(schedule_, part, rank));
  }

  /// Null when the action may stand here; then it counts as done.
  const char* take(const Action& a, RankId rank) {
    if (!fits_(a, rank)) return kDoesNotFit;
    const ActionKind kind = a.kind();
    StageState& stage = stages_[a.stage().index()];
    if (!has_microbatch(kind)) return take_of_stage(kind, stage);
    Bits& past = past_(a.stage(), a.microbatch());
    const Rule& rule = kRules[static_cast<std::size_t>(kind)];
    if ((past & rule.forbidden) != 0) {
      return (past & bit(kind)) != 0 ? "it stands twice: remove one of the two"
                                     : "its backward has run already: have either one B, or one I and one W";
    }
    if ((past & rule.needed) != rule.needed) return rule.missing;
    if (is_compute(kind)) {
      if (const char* why = take_compute(a, past, stage)) return why;
    }
    past |= rule.leaves;
    return nullptr;
  }

  const char* take_compute(const Action& a, Bits past, StageState& stage) {
    if (stage.sharding == Sharding::kSharded) return "its stage is resharded here: add an UNSHARD before it";
    ++stage.computes;
    const ActionKind kind = a.kind();
    stage.weight_parts += gives_weight_gradient(kind);
    if (kind == ActionKind::kBackwardWeight) return nullptr;
    if (kind != ActionKind::kForward) return gradient_present(a, past) ? nullptr : missing_gradient(a);
    ++stage.forwards;
    return forward_input_present(a, past) ? nullptr : missing_forward_input(a);
  }

  [[nodiscard]] bool forward_input_present(const Action& a, Bits past) const {
    const StageId s = a.stage();
    if (s.value == 0) return true;
    if (placement_.share_rank(s, s - 1)) return (past_(s - 1, a.microbatch()) & kForward) != 0;
    return !communicates_ || (past & bit(ActionKind::kRecvForward)) != 0;
  }

  [[nodiscard]] bool gradient_present(const Action& a, Bits past) const {
    const StageId s = a.stage();
    if (s.value == schedule_.stages() - 1) return true;
    if (placement_.share_rank(s, s + 1)) return (past_(s + 1, a.microbatch()) & kGradient) != 0;
    return !communicates_ || (past & bit(ActionKind::kRecvBackward)) != 0;
  }

  [[nodiscard]] const char* missing_forward_input(const Action& a) const {
    return placement_.share_rank(a.stage(), a.stage() - 1)
               ? "the F of the stage before it, on this same rank, does not stand before it: change their order"
               : "its RECV_F does not stand before it: the input must be received first";
  }

  [[nodiscard]] const char* missing_gradient(const Action& a) const {
    return placement_.share_rank(a.stage(), a.stage() + 1)
               ? "the backward of the stage after it, on this same rank, does not stand before it: change their order"
               : "its RECV_B does not stand before it: the gradient must be received first";
  }

  [[nodiscard]] const char* take_of_stage(ActionKind kind, StageState& stage) const {
    if (kind == ActionKind::kUnshard) {
      if (stage.sharding == Sharding::kUnsharded) return "its stage is unsharded already: RESHARD it first";
      if (stage.sharding == Sharding::kNone && stage.computes > 0) {
        return "its stage has computed before without an UNSHARD: unshard it before its first action";
      }
      stage.sharding = Sharding::kUnsharded;
    } else if (kind == ActionKind::kReshard) {
      if (stage.sharding != Sharding::kUnsharded) return "its stage is not unsharded here: UNSHARD comes first";
      stage.sharding = Sharding::kSharded;
    } else {
      if (stage.reduced) return "its stage is reduced already: REDUCE_GRAD comes once per stage";
      if (stage.weight_parts < schedule_.microbatches) {
        return "its stage has weight parts still to come: REDUCE_GRAD stands after the last B or W";
      }
      stage.reduced = true;
    }
    return nullptr;
  }

  std::optional<Refusal> check_completeness() const {
    const bool trains =
        std::any_of(stages_.begin(), stages_.end(), [](const StageState& s) { return s.weight_parts > 0; }) ||
        any_input_part();
    const bool reduces = std::any_of(stages_.begin(), stages_.end(), [](const StageState& s) { return s.reduced; });
    for (int s = 0; s < schedule_.stages(); ++s) {
      const StageState& stage = stages_[static_cast<std::size_t>(s)];
      const RankId rank = placement_.rank_of(StageId(s));
      if (auto refusal = check_stage(StageId(s), stage, rank, trains)) return refusal;
      if (stage.sharding == Sharding::kUnsharded) {
        return refuse_missing(rank, Action::of_stage(ActionKind::kReshard, StageId(s)),
                              "the stage is left unsharded at the end: RESHARD it after its last action");
      }
      if (reduces && !stage.reduced) {
        return refuse_missing(rank, Action::of_stage(ActionKind::kReduceGrad, StageId(s)),
                              "other stages reduce their gradients: every stage does, or none");
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] bool any_input_part() const {
    for (int s = 0; s < schedule_.stages(); ++s) {
      for (int m = 0; m < schedule_.microbatches; ++m) {
        if ((past_(StageId(s), MicrobatchId(m)) & kInput) != 0) return true;
      }
    }
    return false;
  }

  std::optional<Refusal> check_stage(StageId s, const StageState& stage, RankId rank, bool trains) const {
    const bool all_forwards = stage.forwards == schedule_.microbatches;
    const bool all_backwards = !trains || stage.weight_parts == schedule_.microbatches;
    const bool sends_forward = communicates_ && s.value + 1 < schedule_.stages() && !placement_.share_rank(s, s + 1);
    const bool sends_backward = communicates_ && trains && s.value > 0 && !placement_.share_rank(s, s - 1);
    if (all_forwards && all_backwards && !sends_forward && !sends_backward) return std::nullopt;
    for (int i = 0; i < schedule_.microbatches; ++i) {
      const MicrobatchId m(i);
      const Bits past = past_(s, m);
      const auto lacks = [&](ActionKind kind) { return (past & bit(kind)) == 0; };
      const auto missing = [&](ActionKind kind, const char* why) { return refuse_missing(rank, {kind, s, m}, why); };
      if (lacks(ActionKind::kForward)) return missing(ActionKind::kForward, "every stage runs every microbatch once");
      if (trains && (past & kGradient) == 0) {
        return missing(ActionKind::kBackward, "every microbatch has one B, or one I and one W, on every stage");
      }
      if (trains && (past & kInput) != 0 && (past & kWeight) == 0) {
        return missing(ActionKind::kBackwardWeight, "its I stands without the W that completes it");
      }
      if (sends_forward && lacks(ActionKind::kSendForward)) {
        return missing(ActionKind::kSendForward, "the stage after it lives on another rank and needs the output");
      }
      if (!trains && !lacks(ActionKind::kRecvBackward)) {
        return refuse_missing(placement_.rank_of(s + 1), {ActionKind::kSendBackward, s + 1, m},
                              "its RECV_B stands without it, in a schedule without backwards: remove the RECV_B");
      }
      if (sends_backward && lacks(ActionKind::kSendBackward)) {
        return missing(ActionKind::kSendBackward, "the stage before it lives on another rank and needs the gradient");
      }
    }
    return std::nullopt;
  }

  const Schedule& schedule_;
  const Placement& placement_;
  bool communicates_;
  Fit fits_;
  StageMicrobatchTable<Bits> past_;
  std::vector<StageState> stages_;
};

}  // namespace

std::optional<Refusal> check_structure(const Schedule& schedule, bool communicates) {
  return Structure(schedule, communicates).run();
}

}  // namespace stagecraft::detail

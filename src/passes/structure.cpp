#include "checks.h"

#include <algorithm>
#include <array>

#include "stagecraft/core/in_parts.h"
#include "stagecraft/schedule/dataflow.h"
#include "well_formed.h"

namespace stagecraft::detail {
namespace {

using Bits = KindSet;

/// One bit per kind of action; each occurs at most once per (stage, microbatch).
constexpr Bits bit(ActionKind kind) { return kind_bit(kind); }
constexpr Bits kForward = bit(ActionKind::kForward);
constexpr Bits kInput = bit(ActionKind::kBackwardInput);
constexpr Bits kWeight = bit(ActionKind::kBackwardWeight);
/// Set by both B and I. Reuses the bit of overlaps, which set the bits of their halves instead.
constexpr Bits kGradient = bit(ActionKind::kOverlap);

/// Bits that must and must not be set for a stage's microbatch before an action of a kind, and bits the action sets.
struct Rule {
  Bits needed = 0;
  Bits forbidden = 0;
  Bits leaves = 0;
  const char* missing = nullptr;  // error text when a needed bit is not set
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

/// A marker: `misfit` gives the actual reason.
constexpr const char* kDoesNotFit = "it does not fit";

enum class Sharding : std::uint8_t { kNone, kUnsharded, kSharded };

constexpr Bits kComputeKinds = kForward | kInput | kWeight | bit(ActionKind::kBackward);

struct StageState {
  RankId rank;
  Bits misfits = 0;       // kinds that the stage cannot have, given where its neighbours are
  Bits taken_nearby = 0;  // kinds whose input comes from a stage on the same rank
  Bits not_while_sharded = 0;
  Sharding sharding = Sharding::kNone;
  std::array<Bits, kActionKinds> needed{};         // by kind: bits needed of its microbatch, including its RECV
  std::array<std::int32_t, kActionKinds> count{};  // done so far, by kind

  [[nodiscard]] int done(ActionKind kind) const { return count[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] int weight_parts() const { return done(ActionKind::kBackward) + done(ActionKind::kBackwardWeight); }
  [[nodiscard]] bool has_computed() const {
    return done(ActionKind::kForward) + weight_parts() + done(ActionKind::kBackwardInput) > 0;
  }
  [[nodiscard]] bool reduced() const { return done(ActionKind::kReduceGrad) > 0; }
};

class Structure {
 public:
  Structure(const Schedule& schedule, bool communicates)
      : schedule_(schedule),
        placement_(schedule.placement),
        communicates_(communicates),
        stage_count_(static_cast<std::size_t>(schedule.stages())),
        microbatches_(static_cast<std::size_t>(schedule.microbatches)),
        past_(schedule),
        stages_(stage_count_) {
    for (int s = 0; s < schedule.stages(); ++s) prepare(StageId(s));
  }

  std::optional<Refusal> run() {
    // The actions of a rank change only the state of its own stages, so rows can be checked in parallel.
    std::vector<std::optional<Refusal>> refusals(schedule_.rows.size());
    in_parts(schedule_.rows.size(), schedule_.slots(), [&](std::size_t begin, std::size_t end) {
      for (std::size_t r = begin; r < end && !refusals[begin]; ++r) {
        refusals[begin] = take_row(RankId(r));  // the first refusal of this part
      }
    });
    for (auto& refusal : refusals) {
      if (refusal) return std::move(refusal);
    }
    return check_completeness();
  }

 private:
  /// Sets what a stage's neighbours and their ranks require of its actions.
  void prepare(StageId s) {
    StageState& stage = stages_[s.index()];
    stage.rank = placement_.rank_of(s);
    for (std::size_t kind = 0; kind < kRules.size(); ++kind) stage.needed[kind] = kRules[kind].needed;
    const auto join = [&](StageId neighbour, std::initializer_list<ActionKind> messages, ActionKind receive,
                          std::initializer_list<ActionKind> takers) {
      const bool exists = placement_.contains(neighbour);
      const bool nearby = exists && placement_.share_rank(s, neighbour);
      for (const ActionKind kind : messages) {
        if (!exists || nearby) stage.misfits |= bit(kind);
      }
      for (const ActionKind kind : takers) {
        if (nearby) stage.taken_nearby |= bit(kind);
        if (exists && !nearby && communicates_) stage.needed[static_cast<std::size_t>(kind)] |= bit(receive);
      }
    };
    join(s - 1, {ActionKind::kRecvForward, ActionKind::kSendBackward}, ActionKind::kRecvForward,
         {ActionKind::kForward});
    join(s + 1, {ActionKind::kRecvBackward, ActionKind::kSendForward}, ActionKind::kRecvBackward,
         {ActionKind::kBackward, ActionKind::kBackwardInput});
  }

  std::optional<Refusal> take_row(RankId rank) {
    const Row& row = schedule_.rows[rank.index()];
    bool idle = true;
    for (const Action& action : row) {
      if (action.is_idle()) continue;
      idle = false;
      const char* why = action.is_overlap() ? take_halves(action, rank) : take(action, rank);
      if (why == nullptr) continue;
      const auto step = static_cast<std::size_t>(&action - row.data());
      return why == kDoesNotFit ? refuse_misfit(action, rank, step) : refuse_for(why, rank, step);
    }
    if (idle) return refuse_empty_rank(rank);
    return std::nullopt;
  }

  const char* take_halves(const Action& overlap, RankId rank) {
    if (overlap.first().stage() == overlap.second().stage() &&
        overlap.first().microbatch() == overlap.second().microbatch()) {
      return "both halves are of one stage and microbatch: a backward cannot run together with its own forward, so "
             "write them apart";
    }
    const char* why = take(overlap.first(), rank);
    return why != nullptr ? why : take(overlap.second(), rank);
  }

  /// Reports a missing forward instead, if there is one: it may be the cause of this fault.
  [[nodiscard]] Refusal refuse_for(const char* why, RankId rank, std::size_t step) const {
    if (auto missing = check_forwards(schedule_)) return *missing;
    return refuse_at(schedule_, rank, step, why);
  }

  [[nodiscard]] Refusal refuse_misfit(const Action& action, RankId rank, std::size_t step) const {
    const Action part = Fit(schedule_)(action.first(), rank) ? action.second() : action.first();
    return refuse_at(schedule_, rank, step, misfit(schedule_, part, rank));
  }

  /// Returns null and counts the action as done if it is valid here, else the reason. This is the hot path of the
  /// verifier: it only tests bits, and `why_not` finds the text.
  const char* take(const Action& a, RankId rank) {
    const auto kind = static_cast<std::size_t>(a.kind());
    const std::size_t s = a.stage().index();
    if (s >= stage_count_ || stages_[s].rank != rank) return kDoesNotFit;
    StageState& stage = stages_[s];
    if (a.microbatch().index() >= microbatches_) return take_of_stage(a, stage);
    const Rule& rule = kRules[kind];
    Bits& past = past_(a.stage(), a.microbatch());
    const Bits own = bit(a.kind());
    if (((stage.misfits | stage.not_while_sharded) & own) != 0 || (past & rule.forbidden) != 0 ||
        (stage.needed[kind] & ~past) != 0 || ((stage.taken_nearby & own) != 0 && !neighbour_is_done(a))) {
      return why_not(a, stage, past);
    }
    past |= rule.leaves;
    ++stage.count[kind];
    return nullptr;
  }

  /// The text of the first rule that the action breaks.
  [[nodiscard]] const char* why_not(const Action& a, const StageState& stage, Bits past) const {
    const ActionKind kind = a.kind();
    const Rule& rule = kRules[static_cast<std::size_t>(kind)];
    if ((stage.misfits & bit(kind)) != 0) return kDoesNotFit;
    if ((past & rule.forbidden) != 0) {
      return (past & bit(kind)) != 0 ? "it stands twice: remove one of the two"
                                     : "its backward has run already: have either one B, or one I and one W";
    }
    if ((past & rule.needed) != rule.needed) return rule.missing;
    if ((stage.not_while_sharded & bit(kind)) != 0) return "its stage is resharded here: add an UNSHARD before it";
    return kind == ActionKind::kForward ? missing_forward_input(a) : missing_gradient(a);
  }

  /// Whether the input from a neighbour stage on the same rank has been computed.
  [[nodiscard]] bool neighbour_is_done(const Action& a) const {
    const bool forward = a.kind() == ActionKind::kForward;
    const StageId neighbour = forward ? a.stage() - 1 : a.stage() + 1;
    return (past_(neighbour, a.microbatch()) & (forward ? kForward : kGradient)) != 0;
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

  const char* take_of_stage(const Action& a, StageState& stage) const {
    const ActionKind kind = a.kind();
    if (has_microbatch(kind)) return kDoesNotFit;
    if (kind == ActionKind::kUnshard) {
      if (stage.sharding == Sharding::kUnsharded) return "its stage is unsharded already: RESHARD it first";
      if (stage.sharding == Sharding::kNone && stage.has_computed()) {
        return "its stage has computed before without an UNSHARD: unshard it before its first action";
      }
      stage.sharding = Sharding::kUnsharded;
      stage.not_while_sharded = 0;
    } else if (kind == ActionKind::kReshard) {
      if (stage.sharding != Sharding::kUnsharded) return "its stage is not unsharded here: UNSHARD comes first";
      stage.sharding = Sharding::kSharded;
      stage.not_while_sharded = kComputeKinds;
    } else {
      if (stage.reduced()) return "its stage is reduced already: REDUCE_GRAD comes once per stage";
      if (stage.weight_parts() < schedule_.microbatches) {
        return "its stage has weight parts still to come: REDUCE_GRAD stands after the last B or W";
      }
    }
    ++stage.count[static_cast<std::size_t>(kind)];
    return nullptr;
  }

  std::optional<Refusal> check_completeness() const {
    const bool trains = std::any_of(stages_.begin(), stages_.end(), [](const StageState& s) {
      return s.weight_parts() + s.done(ActionKind::kBackwardInput) > 0;
    });
    const bool reduces = std::any_of(stages_.begin(), stages_.end(), [](const StageState& s) { return s.reduced(); });
    for (int s = 0; s < schedule_.stages(); ++s) {
      const StageState& stage = stages_[static_cast<std::size_t>(s)];
      const RankId rank = placement_.rank_of(StageId(s));
      if (auto refusal = check_stage(StageId(s), stage, rank, trains)) return refusal;
      if (stage.sharding == Sharding::kUnsharded) {
        return refuse_missing(rank, Action::of_stage(ActionKind::kReshard, StageId(s)),
                              "the stage is left unsharded at the end: RESHARD it after its last action");
      }
      if (reduces && !stage.reduced()) {
        return refuse_missing(rank, Action::of_stage(ActionKind::kReduceGrad, StageId(s)),
                              "other stages reduce their gradients: every stage does, or none");
      }
    }
    return std::nullopt;
  }

  std::optional<Refusal> check_stage(StageId s, const StageState& stage, RankId rank, bool trains) const {
    const bool sends_forward = communicates_ && (stage.misfits & bit(ActionKind::kSendForward)) == 0;
    const bool sends_backward = communicates_ && trains && (stage.misfits & bit(ActionKind::kSendBackward)) == 0;
    // No action is counted twice, so the counts alone tell whether all are done.
    const int all = schedule_.microbatches;
    const auto enough = [&](bool wanted, int done) { return !wanted || done == all; };
    if (stage.done(ActionKind::kForward) == all && enough(trains, stage.weight_parts()) &&
        enough(sends_forward, stage.done(ActionKind::kSendForward)) &&
        enough(sends_backward, stage.done(ActionKind::kSendBackward)) &&
        (trains || stage.done(ActionKind::kRecvBackward) == 0)) {
      return std::nullopt;
    }
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
  std::size_t stage_count_;
  std::size_t microbatches_;
  StageMicrobatchTable<Bits> past_;
  std::vector<StageState> stages_;
};

}  // namespace

std::optional<Refusal> check_structure(const Schedule& schedule, bool communicates) {
  return Structure(schedule, communicates).run();
}

}  // namespace stagecraft::detail

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "stagecraft/core/ids.h"

/// Actions: the instruction set of a pipeline schedule, and their text.
namespace stagecraft {

enum class ActionKind : std::uint8_t {
  kIdle,            ///< An empty slot of the table.
  kForward,         ///< F
  kBackward,        ///< B: input and weight gradients together.
  kBackwardInput,   ///< I: gradients of the inputs only.
  kBackwardWeight,  ///< W: gradients of the weights, some time after the I.
  kOverlap,         ///< OVERLAP_F_B: a forward and a backward in flight together.
  kUnshard,         ///< Gather the stage's sharded parameters.
  kReshard,         ///< Drop the gathered parameters.
  kReduceGrad,      ///< Reduce the stage's gradients over its replicas.
  kSendForward,     ///< SEND_F: the output of the stage, to the stage after it.
  kRecvForward,     ///< RECV_F: the input of the stage, from the stage before it.
  kSendBackward,    ///< SEND_B: the input gradient, to the stage before it.
  kRecvBackward,    ///< RECV_B: the output gradient, from the stage after it.
};
inline constexpr int kActionKinds = 13;

/// Largest ids an action can hold. Counts (one more than the largest id) fit an int too.
inline constexpr std::int32_t kMaxStage = (1 << 24) - 1;
inline constexpr std::int32_t kMaxMicrobatch = INT32_MAX - 1;

/// A trivially copyable value of 16 bytes. An OVERLAP_F_B holds two plain actions; every other kind is a plain action.
/// Kinds without a microbatch (UNSHARD, RESHARD, REDUCE_GRAD) report microbatch -1.
class Action {
 public:
  /// An idle slot.
  constexpr Action() = default;
  constexpr Action(ActionKind kind, StageId stage, MicrobatchId microbatch) : first_(pack(kind, stage, microbatch)) {}

  static constexpr Action idle() { return {}; }
  static constexpr Action forward(StageId s, MicrobatchId m) { return {ActionKind::kForward, s, m}; }
  static constexpr Action backward(StageId s, MicrobatchId m) { return {ActionKind::kBackward, s, m}; }
  static constexpr Action backward_input(StageId s, MicrobatchId m) { return {ActionKind::kBackwardInput, s, m}; }
  static constexpr Action backward_weight(StageId s, MicrobatchId m) { return {ActionKind::kBackwardWeight, s, m}; }
  /// For UNSHARD, RESHARD and REDUCE_GRAD, which have a stage but no microbatch.
  static constexpr Action of_stage(ActionKind kind, StageId s) { return {kind, s, MicrobatchId(-1)}; }
  /// Both parts must be plain actions; their order is kept. Returns `first` when `second` is idle.
  static constexpr Action overlap(Action first, Action second) {
    if (second.is_idle()) return first;
    Action both(ActionKind::kOverlap, first.stage(), first.microbatch());
    both.first_ |= static_cast<std::uint64_t>(first.kind()) << kHalfShift;
    both.second_ = second.first_;
    return both;
  }

  [[nodiscard]] constexpr ActionKind kind() const { return static_cast<ActionKind>(first_ & kKindMask); }
  /// For an overlap, `stage()` and `microbatch()` are those of its first half.
  [[nodiscard]] constexpr StageId stage() const { return StageId((first_ >> kStageShift) & kStageMask); }
  [[nodiscard]] constexpr MicrobatchId microbatch() const { return MicrobatchId(first_ >> kMicrobatchShift); }
  [[nodiscard]] constexpr bool is_idle() const { return kind() == ActionKind::kIdle; }
  [[nodiscard]] constexpr bool is_overlap() const { return kind() == ActionKind::kOverlap; }
  /// The two halves of an overlap. For any other action, `first()` is the action itself and `second()` is idle.
  [[nodiscard]] constexpr Action first() const {
    if (!is_overlap()) return *this;
    return {static_cast<ActionKind>((first_ >> kHalfShift) & kKindMask), stage(), microbatch()};
  }
  [[nodiscard]] constexpr Action second() const {
    Action half;
    half.first_ = second_;
    return half;
  }

  constexpr bool operator==(const Action&) const = default;

 private:
  // From the lowest bit: kind (4), kind of an overlap's first half (4), stage (24), microbatch (32).
  static constexpr unsigned kHalfShift = 4;
  static constexpr unsigned kStageShift = 8;
  static constexpr unsigned kMicrobatchShift = 32;
  static constexpr std::uint64_t kKindMask = 0xf;
  static constexpr std::uint64_t kStageMask = 0xffffff;
  static_assert(kActionKinds <= kKindMask + 1 && kMaxStage <= kStageMask);

  static constexpr std::uint64_t pack(ActionKind kind, StageId stage, MicrobatchId microbatch) {
    return static_cast<std::uint64_t>(kind) | (static_cast<std::uint64_t>(stage.value) & kStageMask) << kStageShift |
           static_cast<std::uint64_t>(static_cast<std::uint32_t>(microbatch.value)) << kMicrobatchShift;
  }

  static constexpr std::uint64_t kIdleBits = std::uint64_t{UINT32_MAX} << kMicrobatchShift;  // no kind, microbatch -1

  std::uint64_t first_ = kIdleBits;
  std::uint64_t second_ = kIdleBits;
};
static_assert(sizeof(Action) == 16);

/// Calls `visit` with each plain action inside: both halves of an overlap in their order, else the action itself.
template <typename Visit>
constexpr void for_each_part(const Action& action, Visit&& visit) {
  if (!action.is_overlap()) {
    visit(action);
  } else {
    visit(action.first());
    visit(action.second());
  }
}

constexpr bool is_send(ActionKind k) { return k == ActionKind::kSendForward || k == ActionKind::kSendBackward; }
constexpr bool is_receive(ActionKind k) { return k == ActionKind::kRecvForward || k == ActionKind::kRecvBackward; }
constexpr bool is_communication(ActionKind k) { return k >= ActionKind::kSendForward; }
/// F, B, I, W and OVERLAP_F_B: besides idle slots, the only kinds in a compute-only schedule.
constexpr bool is_compute(ActionKind k) { return k >= ActionKind::kForward && k <= ActionKind::kOverlap; }
/// B or I: the action that yields the gradient of the stage's input.
constexpr bool gives_input_gradient(ActionKind k) {
  return k == ActionKind::kBackward || k == ActionKind::kBackwardInput;
}
/// B or W: the action after which the microbatch's weight gradient is complete and its activation is dead.
constexpr bool gives_weight_gradient(ActionKind k) {
  return k == ActionKind::kBackward || k == ActionKind::kBackwardWeight;
}
constexpr bool has_microbatch(ActionKind k) {
  return k != ActionKind::kIdle && k != ActionKind::kUnshard && k != ActionKind::kReshard &&
         k != ActionKind::kReduceGrad;
}

/// The stage at the other end of a SEND or RECV.
constexpr StageId peer_stage(const Action& a) {
  const bool up = a.kind() == ActionKind::kSendForward || a.kind() == ActionKind::kRecvBackward;
  return up ? a.stage() + 1 : a.stage() - 1;
}

/// The RECV that matches a SEND, or the SEND that matches a RECV; idle for any other action.
constexpr Action counterpart(const Action& a) {
  switch (a.kind()) {
    case ActionKind::kSendForward:
      return {ActionKind::kRecvForward, a.stage() + 1, a.microbatch()};
    case ActionKind::kRecvForward:
      return {ActionKind::kSendForward, a.stage() - 1, a.microbatch()};
    case ActionKind::kSendBackward:
      return {ActionKind::kRecvBackward, a.stage() - 1, a.microbatch()};
    case ActionKind::kRecvBackward:
      return {ActionKind::kSendBackward, a.stage() + 1, a.microbatch()};
    default:
      return {};
  }
}

// The text of actions, as `torch.distributed.pipelining` reads and writes it: `2F0`, `3SEND_F1`, `0UNSHARD`,
// `(0F5;7B2)OVERLAP_F_B`; an idle slot is an empty text.

/// "F", "SEND_F", "OVERLAP_F_B", ...; empty for idle.
std::string_view kind_text(ActionKind kind);

void append_text(std::string& out, const Action& action);
std::string to_text(const Action& action);

/// Why a text is not an action: the rule it breaks and the correct form. Points to static storage.
struct ActionTextError {
  std::string_view rule;
};

/// Parses one cell. Ignores blanks around it; everything else must match (no trailing junk, no signs).
std::variant<Action, ActionTextError> parse_action(std::string_view text);

/// As `parse_action`, but throws InvalidArgument on an error.
Action to_action(std::string_view text);

}  // namespace stagecraft

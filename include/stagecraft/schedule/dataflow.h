#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stagecraft/schedule/schedule.h"

/// What replays of a schedule are made of: the messages that computes need and give, a table of what has happened to
/// each (stage, microbatch), an order of execution by data alone, and a set of ranks that can go on.
namespace stagecraft {

// The rules of messages are defined only here: activations flow to the next stage, gradients to the previous one, and
// stages on the same rank exchange no messages.

/// The SEND on another rank that a plain compute action needs; idle when it needs no message.
inline Action message_needed(const Placement& placement, const Action& part) {
  const StageId s = part.stage();
  if (part.kind() == ActionKind::kForward && s.value > 0 && !placement.share_rank(s, s - 1)) {
    return {ActionKind::kSendForward, s - 1, part.microbatch()};
  }
  if (gives_input_gradient(part.kind()) && s.value + 1 < placement.stages() && !placement.share_rank(s, s + 1)) {
    return {ActionKind::kSendBackward, s + 1, part.microbatch()};
  }
  return {};
}

/// The SEND that carries a plain compute action's result to another rank; idle when no other rank needs the result.
inline Action message_given(const Placement& placement, const Action& part) {
  const StageId s = part.stage();
  if (part.kind() == ActionKind::kForward && s.value + 1 < placement.stages() && !placement.share_rank(s, s + 1)) {
    return {ActionKind::kSendForward, s, part.microbatch()};
  }
  if (gives_input_gradient(part.kind()) && s.value > 0 && !placement.share_rank(s, s - 1)) {
    return {ActionKind::kSendBackward, s, part.microbatch()};
  }
  return {};
}

/// One small value per (stage, microbatch) in a flat array: the state that passes, verification and simulation keep.
template <typename Value>
class StageMicrobatchTable {
 public:
  explicit StageMicrobatchTable(const Schedule& schedule, Value value = {})
      : microbatches_(static_cast<std::size_t>(schedule.microbatches)),
        values_(static_cast<std::size_t>(schedule.stages()) * microbatches_, value) {}

  Value& operator()(StageId stage, MicrobatchId microbatch) { return values_[at(stage, microbatch)]; }
  Value operator()(StageId stage, MicrobatchId microbatch) const { return values_[at(stage, microbatch)]; }

 private:
  [[nodiscard]] std::size_t at(StageId stage, MicrobatchId microbatch) const {
    return stage.index() * microbatches_ + microbatch.index();
  }

  std::size_t microbatches_;
  std::vector<Value> values_;
};

/// The slots of the F, and of the B or I, of a stage's microbatch; -1 for one that is missing.
struct ComputeSlots {
  int forward = -1;
  int backward = -1;
};
inline StageMicrobatchTable<ComputeSlots> compute_slots(const Schedule& schedule) {
  StageMicrobatchTable<ComputeSlots> slots(schedule);
  for (const Row& row : schedule.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      for_each_part(row[i], [&](const Action& part) {
        if (part.kind() == ActionKind::kForward) slots(part.stage(), part.microbatch()).forward = static_cast<int>(i);
        if (gives_input_gradient(part.kind())) slots(part.stage(), part.microbatch()).backward = static_cast<int>(i);
      });
    }
  }
  return slots;
}

/// Runs the rows by their data dependencies alone: each rank runs until an action is not ready, and is retried after
/// `wake(rank)`. `run_action(rank, action)` returns whether the action could run; it may call `wake` for any rank.
/// Running each rank as far as possible accesses memory rank by rank instead of jumping between ranks at every step.
class Dataflow {
 public:
  explicit Dataflow(const Schedule& schedule) : rows_(schedule.rows), next_(schedule.rows.size(), 0) {}

  template <typename RunAction>
  void run(RunAction&& run_action) {
    for (std::size_t r = rows_.size(); r-- > 0;) runnable_.push_back(r);
    while (!runnable_.empty()) {
      const std::size_t r = runnable_.back();
      runnable_.pop_back();
      const Row& row = rows_[r];
      std::size_t i = next_[r];
      while (i < row.size() && run_action(r, row[i])) ++i;
      next_[r] = i;
    }
  }

  void wake(std::size_t rank) {
    // A neighbour that runs on often wakes the same rank several times in a row.
    if (runnable_.empty() || runnable_.back() != rank) runnable_.push_back(rank);
  }

  /// By rank: the slot of its next action, or the size of its row when it has finished.
  [[nodiscard]] const std::vector<std::size_t>& position() const { return next_; }

  /// The first rank that has not finished, or -1.
  [[nodiscard]] int first_blocked() const {
    for (std::size_t r = 0; r < next_.size(); ++r) {
      if (next_[r] < rows_[r].size()) return static_cast<int>(r);
    }
    return -1;
  }

 private:
  const std::vector<Row>& rows_;
  std::vector<std::size_t> next_;
  std::vector<std::size_t> runnable_;
};

/// A bit set of ranks that can be iterated in ascending order while it changes.
class RankSet {
 public:
  static constexpr std::size_t npos = SIZE_MAX;

  explicit RankSet(std::size_t ranks) : words_((ranks + 63) / 64) {}

  void insert(std::size_t rank) { words_[rank / 64] |= bit(rank); }
  void erase(std::size_t rank) { words_[rank / 64] &= ~bit(rank); }
  [[nodiscard]] bool contains(std::size_t rank) const { return (words_[rank / 64] & bit(rank)) != 0; }

  /// The smallest member >= rank, or npos.
  [[nodiscard]] std::size_t next(std::size_t rank) const {
    std::size_t word = rank / 64;
    if (word >= words_.size()) return npos;
    std::uint64_t left = words_[word] & (~std::uint64_t{0} << rank % 64);
    while (left == 0) {
      if (++word == words_.size()) return npos;
      left = words_[word];
    }
    return word * 64 + static_cast<std::size_t>(std::countr_zero(left));
  }

 private:
  static std::uint64_t bit(std::size_t rank) { return std::uint64_t{1} << rank % 64; }

  std::vector<std::uint64_t> words_;
};

}  // namespace stagecraft

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/transport/channel.h"

/// The protocol by which ranks agree on the end of a step, and what they have said about themselves.
///
/// **How a step ends.** Every rank tells rank 0, the root, that it is at the end of the step, and which failure it
/// knows of (kSettle). When the root has heard all, it takes the failure of the lowest rank, if there is any, and tells
/// it to every rank (kVerdict): 2 (P - 1) messages for P ranks.
///
/// - All ranks conclude the same, because one rank decides.
/// - No failure is missed: a rank that fails aborts before it settles, so its own kSettle says so, whether or not its
///   kAbort has reached anybody. A kAbort that arrives after the verdict belongs to a step that the verdict has failed
///   already.
/// - No rank enters the next step before all have finished this one. Messages, aborts and kSettle of the next step may
///   still arrive from other ranks before this step's verdict: all carry their step number, and are kept until then.
/// - kDepart says in which step the program of a rank ended. If that rank has not concluded this step, it never will,
///   and waiting for the verdict is useless. If it has, the verdict is on its way to the others too.
/// - A rank that goes on without the verdict sends kGiveUp, which ends all waits of all ranks in that step, and later
///   ones. The verdict of an earlier step is on its way: that rank has it.
namespace stagecraft {

class RollCall {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr RankId kRoot{0};

  struct Failed {
    Failure failure;
    bool by_timeout = false;
    Clock::time_point heard;
  };

  RollCall(RankId own, int ranks);

  [[nodiscard]] bool is_root() const { return own_ == kRoot; }
  /// Steps settled so far.
  [[nodiscard]] std::uint64_t step() const { return step_; }
  /// Settled steps that failed.
  [[nodiscard]] std::uint64_t failed_steps() const { return failed_steps_; }
  /// Records a notice of another rank.
  void hear(RankId from, const Notice& notice);

  // Steps.
  /// Records a failure of this step. Returns false, and changes nothing, when one is known already.
  bool add_failure(const Failure& failure, bool by_timeout);
  /// The failure of this step, or null.
  [[nodiscard]] const Failed* failure() const;
  /// Called when this rank has finished the step. Returns the failure to report to the root, if any; the root records
  /// its own.
  std::optional<Failure> answer();
  /// Whether the verdict is known; on the root, whether all ranks have answered.
  [[nodiscard]] bool is_complete() const;
  /// The failure of the step, if any. Requires is_complete().
  [[nodiscard]] std::optional<Failure> verdict() const;
  /// Begins the next step.
  void conclude(const std::optional<Failure>& verdict);

  // Ranks.
  [[nodiscard]] bool has_departed(RankId rank) const { return departures_[rank.index()].has_value(); }
  [[nodiscard]] bool all_others_departed() const { return departed_ + 1 == static_cast<int>(departures_.size()); }
  /// The failure of a rank whose program has ended with one, if any.
  [[nodiscard]] std::optional<Failure> failed_departure() const;
  /// Records that the process of a rank is gone or out of reach. Only the first call counts.
  void lose(RankId rank, const std::string& text);
  [[nodiscard]] const std::optional<Failure>& lost() const { return lost_; }
  /// Records that some rank has gone on without the verdict of a step. Only the first failure counts.
  void give_up(const Failure& failure, std::uint64_t step);
  [[nodiscard]] bool is_over() const { return over_.has_value(); }
  [[nodiscard]] const std::optional<Failure>& over() const { return over_; }
  /// Why to stop waiting for a message of `from`, or null.
  [[nodiscard]] const Failure* reason_to_give_up(RankId from) const;
  /// Why to stop waiting for the end of the step, or null.
  [[nodiscard]] const Failure* reason_not_to_settle() const;

 private:
  struct Departure {
    Failure words;
    bool failed;
    std::uint64_t step;  // the step it was in
  };
  using Answers = std::map<std::int32_t, std::optional<Failure>>;  // by rank

  RankId own_;
  std::uint64_t step_ = 0;
  std::uint64_t failed_steps_ = 0;
  std::map<std::uint64_t, Failed> failures_;                  // by step
  std::map<std::uint64_t, Answers> answers_;                  // by step; on the root
  std::map<std::uint64_t, std::optional<Failure>> verdicts_;  // by step; on the others
  std::vector<std::optional<Departure>> departures_;          // by rank
  int departed_ = 0;                                          // how many
  std::optional<Failure> lost_;
  std::optional<Failure> over_;
  std::uint64_t over_since_ = 0;  // the first step without a verdict, if it is over
};

}  // namespace stagecraft

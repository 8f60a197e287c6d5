#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/transport/channel.h"

/// What the ranks have said about steps and about themselves.
///
/// **How a step ends.** Every rank tells rank 0, the root, that it is at the end of the step, and which failure it
/// knows of (kSettle). When the root has heard all, it takes the failure of the lowest rank, if there is any, and tells
/// it to every rank (kVerdict): 2 (P - 1) messages for P ranks.
///
/// - All ranks conclude the same, because one rank decides.
/// - No failure is missed: a rank that fails aborts before it settles, so its own kSettle says so, whether or not its
///   kAbort has reached anybody. A kAbort that arrives after the verdict is of a step that the verdict has failed too.
/// - No rank is in the next step before all have come to the end of this one. Messages, aborts and kSettle of the next
///   step may still arrive before this one's verdict, by another way: all are numbered by step, and wait.
/// - A rank that ends its program says with which step (kDepart). One that has not concluded this step never will, and
///   waiting for the verdict is in vain; one that has, has had the verdict, which is on its way to the others too.
/// - A rank that stops waiting for the verdict and goes on says kGiveUp: no later wait of any rank has a meaning.
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
  /// Of them, those that ended in failure.
  [[nodiscard]] std::uint64_t failed_steps() const { return failed_steps_; }
  /// Takes note of what another rank says about steps or ranks.
  void hear(RankId from, const Notice& notice);

  // Steps.
  /// False when a failure of this step is known already.
  bool add_failure(const Failure& failure, bool by_timeout);
  /// Of the present step, or null.
  [[nodiscard]] const Failed* failure() const;
  /// This rank is at the end of the step. Returns what it has to tell the root; the root keeps it.
  std::optional<Failure> answer();
  /// Whether there is a verdict, or on the root all that it takes.
  [[nodiscard]] bool is_complete() const;
  /// What the verdict is, once it is complete.
  [[nodiscard]] std::optional<Failure> verdict() const;
  /// Begins the next step.
  void conclude(const std::optional<Failure>& verdict);

  // Ranks.
  [[nodiscard]] bool has_departed(RankId rank) const { return departures_[rank.index()].has_value(); }
  [[nodiscard]] int departed() const { return departed_; }
  [[nodiscard]] bool all_others_departed() const { return departed_ + 1 == static_cast<int>(departures_.size()); }
  /// Of a program that has failed.
  [[nodiscard]] std::optional<Failure> failed_departure() const;
  /// The process of a rank is gone or out of reach; the first counts.
  void lose(RankId rank, const std::string& text);
  [[nodiscard]] const std::optional<Failure>& lost() const { return lost_; }
  /// Some rank has gone on without a verdict; the first counts.
  void give_up(const Failure& failure);
  [[nodiscard]] bool is_over() const { return over_.has_value(); }
  [[nodiscard]] const std::optional<Failure>& over() const { return over_; }
  /// Why waiting for a message of `from` is in vain, or null.
  [[nodiscard]] const Failure* reason_to_give_up(RankId from) const;
  /// Why waiting for the end of the step is in vain, or null.
  [[nodiscard]] const Failure* reason_not_to_settle() const;

 private:
  struct Departure {
    Failure words;
    bool failed;
    std::uint64_t step;  // that it was in
  };
  using Answers = std::map<std::int32_t, std::optional<Failure>>;  // by rank

  RankId own_;
  std::uint64_t step_ = 0;
  std::uint64_t failed_steps_ = 0;
  std::map<std::uint64_t, Failed> failures_;                  // by step
  std::map<std::uint64_t, Answers> answers_;                  // by step; of the root
  std::map<std::uint64_t, std::optional<Failure>> verdicts_;  // by step; of the others
  std::vector<std::optional<Departure>> departures_;          // by rank
  int departed_ = 0;                                          // how many
  std::optional<Failure> lost_;
  std::optional<Failure> over_;
};

}  // namespace stagecraft

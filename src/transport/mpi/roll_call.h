#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "envelope.h"
#include "stagecraft/transport/transport.h"

/// What the ranks have said about steps and about themselves. Nothing here knows MPI.
namespace stagecraft::mpi {

class RollCall {
 public:
  RollCall(RankId own, int ranks);

  /// Steps settled so far.
  [[nodiscard]] std::uint64_t step() const { return step_; }
  /// Of them, those that ended in failure.
  [[nodiscard]] std::uint64_t failed_steps() const { return failed_steps_; }
  /// Takes note of an envelope that is no data.
  void hear(RankId from, const Envelope& envelope);

  // Steps.
  /// False when a failure of this step is known already.
  bool add_failure(const Failure& failure) { return failures_.emplace(step_, failure).second; }
  /// Of the present step, or null.
  [[nodiscard]] const Failure* failure() const;
  [[nodiscard]] bool has_failed(std::uint64_t step) const { return step < step_ && failures_.contains(step); }
  /// This rank is at the end of the step. Returns what it has to tell the others.
  std::optional<Failure> answer();
  [[nodiscard]] bool is_complete() const;
  /// Who has not answered yet.
  [[nodiscard]] std::vector<RankId> missing() const;
  /// All have the same answers, so all come to the same conclusion. Begins the next step.
  std::optional<Failure> conclude();

  // Ranks.
  [[nodiscard]] bool has_departed(RankId rank) const { return departures_[rank.index()].has_value(); }
  [[nodiscard]] bool all_others_departed() const;
  /// Of a program that has failed.
  [[nodiscard]] std::optional<Failure> failed_departure() const;
  /// The process of a rank is gone or out of reach; the first counts.
  void lose(RankId rank, const std::string& text);
  [[nodiscard]] const std::optional<Failure>& lost() const { return lost_; }
  /// Why waiting for `from` is in vain, or null.
  [[nodiscard]] const Failure* reason_to_give_up(RankId from) const;

 private:
  struct Departure {
    Failure words;
    bool failed;
  };

  RankId own_;
  std::uint64_t step_ = 0;
  std::uint64_t failed_steps_ = 0;
  std::map<std::uint64_t, Failure> failures_;                                        // by step
  std::map<std::uint64_t, std::map<std::int32_t, std::optional<Failure>>> answers_;  // by step and rank
  std::vector<std::optional<Departure>> departures_;                                 // by rank
  std::optional<Failure> lost_;
};

}  // namespace stagecraft::mpi

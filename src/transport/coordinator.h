#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "roll_call.h"
#include "stagecraft/transport/channel.h"
#include "waiting.h"

namespace stagecraft {

/// Who failed, who waits for whom, and when a step is over: what every transport does alike, by notices from rank to
/// rank (RollCall has the protocol). All waiting of a rank is done here.
///
/// The lock is held for moments, and never while a channel is called: a channel may call `hear` under its own.
class Coordinator {
 public:
  using Clock = std::chrono::steady_clock;

  /// The channel outlives every call but those of `hear`.
  Coordinator(Channel& channel, std::function<std::string()> activity);

  /// A notice has arrived; from any thread. Returns what to answer.
  std::optional<Notice> hear(RankId from, const Notice& notice);

  // What Transport says of them.
  Message receive(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose);
  void abort(const Failure& failure);
  std::optional<Failure> settle(Timeout timeout);
  void give_up(const Failure& failure);
  [[nodiscard]] std::optional<Failure> over() const;
  void depart(const std::optional<std::string>& failure);
  void set_resting(bool resting) { is_resting_ = resting; }
  [[nodiscard]] std::uint64_t failed_steps() const;
  /// Steps settled so far.
  [[nodiscard]] std::uint64_t step() const { return step_; }

  // For whoever starts and ends worlds.
  [[nodiscard]] bool all_others_departed() const;
  /// The failure of a program that has ended in one.
  [[nodiscard]] std::optional<Failure> failed_departure() const;
  /// The process of a rank is gone or out of reach: whoever waits gets AbortedError with this text. The first counts.
  void lose(RankId rank, const std::string& text);
  [[nodiscard]] std::optional<Failure> lost() const;
  /// Whether a wait of this step, on any rank, took too long: some rank does not do what the others wait for.
  [[nodiscard]] bool is_stuck() const;
  /// What this rank is waiting for; empty when it is not.
  [[nodiscard]] std::string pending() const;

 private:
  struct Pending {
    Wait wait;
    Clock::time_point begin;
  };
  class Registration;
  class Inquiry;
  using Answers = std::map<std::int32_t, Standing>;  // by rank

  template <typename Done, typename Limit>
  void wait_until(const Wait& wait, Timeout timeout, const Done& is_done, const Limit& limit);
  template <typename Done>
  bool inquire(const Wait& wait, Timeout timeout, const Done& is_done);
  [[nodiscard]] Clock::time_point end_of_patience(Clock::time_point begin, Timeout timeout) const;
  [[nodiscard]] bool is_settled(std::optional<Failure>& outcome);
  [[nodiscard]] Standing own_standing() const;
  [[nodiscard]] Notice failure_notice(const Failure& failure) const;
  void tell_all(const Notice& notice);
  void throw_if_failed() const;
  void throw_if_failed_locked() const;
  [[noreturn]] void throw_in_vain(const Failure& reason, const Wait& wait) const;

  Channel& channel_;
  const RankId rank_;
  const int ranks_;
  const std::function<std::string()> activity_;
  std::atomic<std::uint64_t> step_ = 0;  // roll_call_'s
  std::atomic<bool> is_resting_ = false;
  std::atomic<std::thread::id> main_thread_ = std::this_thread::get_id();  // that settles steps

  mutable std::mutex mutex_;  // of everything below
  RollCall roll_call_;
  bool has_timed_out_ = false;           // a wait of this step
  std::vector<const Pending*> pending_;  // what threads of this rank wait for
  // One that took too long: it counts until the rank waits again, so that it is not taken for one that goes on.
  std::optional<Wait> given_up_;
  std::map<std::int32_t, Answers> inquiries_;  // by question: answers so far
  std::int32_t last_inquiry_ = 0;
};

}  // namespace stagecraft

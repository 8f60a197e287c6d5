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

/// Keeps track of failed ranks, of who waits for whom, and of the ends of steps, by notices between ranks. The same for
/// every transport; RollCall has the protocol. All waits of a rank are done here.
///
/// The lock is held briefly, and never while a channel is called: a channel may call `hear` under its own lock.
class Coordinator {
 public:
  using Clock = std::chrono::steady_clock;

  /// The channel must outlive all calls except `hear`, which does not use it.
  Coordinator(Channel& channel, std::function<std::string()> activity);

  /// Handles a notice that has arrived; called from any thread. Returns the reply, if any.
  std::optional<Notice> hear(RankId from, const Notice& notice);

  // As documented in Transport.
  Message receive(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose, bool lasting = false);
  void abort(const Failure& failure);
  std::optional<Failure> settle(Timeout timeout);
  /// `before_telling`: once this rank knows, and before others are told, which may take long.
  void give_up(const Failure& failure, const std::function<void()>& before_telling = {});
  [[nodiscard]] std::optional<Failure> over() const;
  void depart(const std::optional<std::string>& failure);
  void set_resting(bool resting) { is_resting_ = resting; }
  [[nodiscard]] std::uint64_t failed_steps() const;
  /// Steps settled so far.
  [[nodiscard]] std::uint64_t step() const { return step_; }

  // For code that starts and ends worlds.
  [[nodiscard]] bool all_others_departed() const;
  /// Called when this rank has departed, without `settle` or `receive` on other threads: waits until all others have,
  /// or one has failed or is lost. A rank whose program goes on says so when it is asked; one that does not answer
  /// within `patience` is lost.
  void wait_for_departures(Timeout patience);
  /// The failure of a rank whose program has ended with one, if any.
  [[nodiscard]] std::optional<Failure> failed_departure() const;
  /// Called when the process of a rank is gone or out of reach: all waits end with AbortedError and this text. Only the
  /// first call counts.
  void lose(RankId rank, const std::string& text);
  [[nodiscard]] std::optional<Failure> lost() const;
  /// Whether a wait of this step has timed out, on any rank.
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
  /// Returns whether it was so by then.
  template <typename IsSo>
  bool wait_for(Clock::time_point until, const IsSo& is_so);
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
  std::atomic<std::uint64_t> step_ = 0;  // copy of roll_call_.step(), readable without the lock
  std::atomic<bool> is_resting_ = false;
  std::atomic<std::thread::id> main_thread_ = std::this_thread::get_id();  // the thread that settles steps

  mutable std::mutex mutex_;  // guards everything below
  RollCall roll_call_;
  bool has_timed_out_ = false;           // a wait of this step
  std::vector<const Pending*> pending_;  // what threads of this rank wait for
  // The wait that timed out. Reported to other ranks until this rank waits again, so that it does not look busy.
  std::optional<Wait> given_up_;
  std::map<std::int32_t, Answers> inquiries_;  // answers so far, by question
  std::int32_t last_inquiry_ = 0;
};

}  // namespace stagecraft

#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "stagecraft/transport/channel.h"

namespace stagecraft {

class Coordinator;

/// One rank's end of a world: a channel to the other ranks, and a coordinator that knows who failed and when a step is
/// over. Messages may be sent and received by several threads of the rank; `settle` is called by one, while the others
/// do neither.
class Transport {
 public:
  /// `activity` says what the rank is doing, for other ranks that wait for it; called from any thread.
  explicit Transport(std::unique_ptr<Channel> channel, std::function<std::string()> activity = {});
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  [[nodiscard]] RankId rank() const { return channel_->rank(); }
  [[nodiscard]] int ranks() const { return channel_->ranks(); }
  /// The communication model that schedules are verified for.
  [[nodiscard]] CommModel model() const { return channel_->model(); }
  /// The clock that this rank's actions are timed with, in seconds.
  [[nodiscard]] double now() const { return channel_->now(); }

  /// See Channel. Both throw TransportError for a rank that does not exist, `send` also InvalidArgument for a tensor
  /// that cannot be sent.
  void send(RankId to, const Tag& tag, Message message);
  void post_receive(RankId from, const Tag& tag);
  /// Waits for the message. Throws AbortedError when some rank failed. Throws TimeoutError, which says what was waited
  /// for; its peer() is the rank that holds things up, found by following who waits for whom. `purpose`, if any, names
  /// the message in errors.
  Message receive(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose = nullptr);
  /// The same for a message that belongs to no step, such as a part of a checkpoint that is written while training goes
  /// on: a failed step neither drops it nor ends the wait for it. Such a wait ends with AbortedError when the sender's
  /// program has ended, when a process is lost, or when some rank has given up. May be received during `settle`.
  /// Tensors of the host arrive on the host.
  void send_lasting(RankId to, const Tag& tag, Message message);
  Message receive_lasting(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose = nullptr);

  /// Fails the step: ends all waits, on all ranks, with AbortedError. Only the first failure counts.
  void abort(const Failure& failure);
  /// Called by all ranks at the end of a step. Waits for all of them and returns the failure of the step, if any, the
  /// same on all ranks. After a failure, messages that nobody received are dropped, collectives of the transport's own
  /// are brought into step (see Channel), and the next step starts clean.
  ///
  /// Throws TimeoutError like `receive`, and may then be called again. In a step that has already failed, throws
  /// AbortedError with that failure instead; if the failure was a timeout, after a short wait only, because the other
  /// ranks have already had the whole timeout.
  std::optional<Failure> settle(Timeout timeout);
  /// Called when this rank goes on without having settled: the ranks are out of step for good. Ends all present and
  /// future waits, on all ranks, with AbortedError. Only the first failure counts.
  void give_up(const Failure& failure);
  /// The failure with which some rank has given up, if any: no further step may begin.
  [[nodiscard]] std::optional<Failure> over() const;
  /// Announces that this rank's program has ended, with `failure` if it failed. Ranks that wait for this one, now or
  /// later, get AbortedError.
  void depart(const std::optional<std::string>& failure = std::nullopt);
  /// Set while the thread that settles steps only waits for other threads of this rank. Timeouts of other ranks then
  /// follow the waits of those threads.
  void set_resting(bool resting);
  /// The number of failed steps; between two steps, the same on all ranks.
  [[nodiscard]] std::uint64_t failed_steps() const;

  /// A group of these ranks in this order; null on ranks that are not members. All ranks of the world call it in the
  /// same order, also those that are not members. `name` is used in errors. The transport must outlive the group.
  std::unique_ptr<Group> make_group(const std::vector<RankId>& members, Timeout timeout, std::string name = {});
  /// A new group id, unique in this world. All ranks call it in the same order, members or not, so that they agree. The
  /// ids are negative: 0 and up are for groups that users number themselves.
  std::int32_t new_group_id() { return --last_group_id_; }

  /// For code that starts and ends worlds.
  [[nodiscard]] Coordinator& coordinator() { return *coordinator_; }

 private:
  void check_rank(RankId rank) const;

  std::unique_ptr<Channel> channel_;
  std::shared_ptr<Coordinator> coordinator_;  // shared with the listener, which may outlive this
  std::int32_t last_group_id_ = 0;
};

}  // namespace stagecraft

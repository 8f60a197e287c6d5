#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "stagecraft/transport/channel.h"

namespace stagecraft {

class Coordinator;

/// One rank's end of a world: a channel to the other ranks, and a coordinator that knows who failed and when a step is
/// over. Messages may be sent and received by several threads of the rank; a step is settled by one, when the others
/// are at rest.
class Transport {
 public:
  /// `activity` says what the rank is doing, for other ranks that wait for it; called from any thread.
  explicit Transport(std::unique_ptr<Channel> channel, std::function<std::string()> activity = {});
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  [[nodiscard]] RankId rank() const { return channel_->rank(); }
  [[nodiscard]] int ranks() const { return channel_->ranks(); }
  /// What it needs of a schedule.
  [[nodiscard]] CommModel model() const { return channel_->model(); }
  /// The clock that this rank's actions are timed with, in seconds.
  [[nodiscard]] double now() const { return channel_->now(); }

  /// See Channel. They throw TransportError for a rank that does not exist.
  void send(RankId to, const Tag& tag, Message message);
  void post_receive(RankId from, const Tag& tag);
  /// Waits for the message. Throws AbortedError when some rank failed; TimeoutError that says what it waited for and
  /// which rank holds it up: the waits of ranks for each other are followed to one that does not wait, its peer().
  /// `purpose`, if any, is what errors call the message.
  Message receive(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose = nullptr);

  /// Ends all waiting, on all ranks, with AbortedError. The first failure counts.
  void abort(const Failure& failure);
  /// Called by all ranks at the end of a step: waits for all of them, and tells every one whether some rank failed.
  /// After a failure, messages that nobody received are dropped, and the transport is as new.
  ///
  /// Throws TimeoutError as `receive` does; it may be called again. In a step that has failed it throws AbortedError
  /// with that failure instead; and if that was a wait that took too long, soon: whoever has not come by then has had
  /// the whole timeout already.
  std::optional<Failure> settle(Timeout timeout);
  /// This rank goes on without having settled: ranks are no longer in the same step, and never will be. Ends all
  /// waiting, now and later, on all ranks, with AbortedError. The first failure counts.
  void give_up(const Failure& failure);
  /// Why, if some rank has given up: no step can begin any more, and what is left of the last one is not to be taken.
  [[nodiscard]] std::optional<Failure> over() const;
  /// This rank's program has ended, well or with this failure: whoever waits for the rank, now or later, gets
  /// AbortedError.
  void depart(const std::optional<std::string>& failure = std::nullopt);
  /// While it is set, the thread that settles steps only waits for other threads of this rank: a rank that waits for
  /// this one then looks at what those wait for.
  void set_resting(bool resting);
  /// How many steps have ended in failure: the same on all ranks between two steps.
  [[nodiscard]] std::uint64_t failed_steps() const;

  /// These ranks, in this order; null on ranks that are not among them. All ranks of the world call it alike. `name` is
  /// what errors call it. The transport outlives it.
  std::unique_ptr<Group> make_group(const std::vector<RankId>& members, Timeout timeout, std::string name = {});
  /// An id for a group that no other group of this world has. All ranks call it alike, also those that are not members.
  /// The ids are negative: 0 and up are for groups that users number themselves.
  std::int32_t new_group_id() { return --last_group_id_; }

  /// For whoever starts and ends worlds.
  [[nodiscard]] Coordinator& coordinator() { return *coordinator_; }

 private:
  void check_rank(RankId rank) const;

  std::unique_ptr<Channel> channel_;
  std::shared_ptr<Coordinator> coordinator_;  // its listener may outlive this
  std::int32_t last_group_id_ = 0;
};

}  // namespace stagecraft

#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/core/ids.h"

/// How tensors get from one rank to another. Everything above sees this interface and nothing else.
namespace stagecraft {

using Timeout = std::chrono::milliseconds;

enum class Channel : std::uint8_t { kForward, kBackward, kCollective };

/// What a message is: two messages in flight between the same ranks never have the same tag. Of a collective, `from` is
/// the group, `to` the round and `microbatch` the number of the collective.
struct Tag {
  Channel channel = Channel::kForward;
  StageId from;
  StageId to;
  MicrobatchId microbatch;

  auto operator<=>(const Tag&) const = default;
};
/// "the activation of microbatch 3 from stage 1 to stage 2".
std::string to_text(const Tag& tag);

/// What a message of a collective is for, in the words of errors. Nothing is owned.
struct Purpose {
  std::string_view what;   ///< "the average of the gradients of stage 3"; or empty, and then:
  std::string_view call;   ///< "all_gather"
  std::string_view group;  ///< "world.peers()"
};
std::string to_text(const Purpose& purpose);

/// An undefined tensor is a place that holds nothing. `header` is for whoever sends and receives.
struct Message {
  std::vector<at::Tensor> tensors;
  std::string header;
};

/// Why a step did not end well, and where it began.
struct Failure {
  RankId rank;  ///< Of the whole world.
  std::string message;
};

/// One rank's end. Messages may be sent and received by several threads of the rank; a step is settled by one, when the
/// others are at rest.
///
/// On a device with streams, completion is stream-ordered: `send` takes tensors that the current stream has still to
/// write, `receive` returns tensors that the current stream may read; the host waits for neither.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual RankId rank() const = 0;
  [[nodiscard]] virtual int ranks() const = 0;

  /// Starts sending and returns at once, whether or not the receiver is there. The tensors are released when they are
  /// sent; nobody may change them in place before.
  virtual void send(RankId to, const Tag& tag, Message message) = 0;

  /// Says that `receive` will be called for this message, so that it can travel in the meantime. Optional.
  virtual void post_receive(RankId from, const Tag& tag) = 0;
  /// Waits for the message. Throws AbortedError when some rank failed; TimeoutError that says what it waited for and
  /// which rank holds it up: the waits of ranks for each other are followed to one that does not wait, its peer().
  /// `purpose`, if any, is what errors call the message.
  virtual Message receive(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose = nullptr) = 0;

  /// Ends all waiting, on all ranks, with AbortedError. The first failure counts.
  virtual void abort(const Failure& failure) = 0;
  /// Called by all ranks at the end of a step: waits for all of them, and tells every one whether some rank failed.
  /// After a failure, messages that nobody received are dropped, and the transport is as new.
  ///
  /// Throws TimeoutError as `receive` does; it may be called again. In a step that has failed it throws AbortedError
  /// with that failure instead; and if that was a wait that took too long, soon: whoever has not come by then has had
  /// the whole timeout already.
  virtual std::optional<Failure> settle(Timeout timeout) = 0;
  /// This rank goes on without having settled: ranks are no longer in the same step, and never will be. Ends all
  /// waiting, now and later, on all ranks, with AbortedError. The first failure counts.
  virtual void give_up(const Failure& failure) = 0;
  /// Why, if some rank has given up: no step can begin any more, and what is left of the last one is not to be taken.
  [[nodiscard]] virtual std::optional<Failure> over() const = 0;
  /// While it is set, the thread that settles steps only waits for other threads of this rank: a rank that waits for
  /// this one then looks at what those wait for.
  virtual void set_resting(bool resting) = 0;
  /// How many steps have ended in failure: the same on all ranks between two steps.
  [[nodiscard]] virtual std::uint64_t failed_steps() const = 0;

  /// An id for a group that no other group of this world has. All ranks call it alike, also those that are not members.
  /// The ids are negative: 0 and up are for groups that users number themselves.
  virtual std::int32_t new_group_id() { return --last_group_id_; }

 private:
  std::int32_t last_group_id_ = 0;
};

}  // namespace stagecraft

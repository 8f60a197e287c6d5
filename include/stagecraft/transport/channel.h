#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "stagecraft/core/comm_model.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/transport/group.h"
#include "stagecraft/transport/message.h"

/// The interface that a new transport implements. `Transport` does the rest (waiting, timeouts, failed steps, lost
/// ranks) in the same way for all of them.
namespace stagecraft {

class Transport;

/// A control message from the coordinator of one rank to that of another.
struct Notice {
  enum class Kind : std::uint8_t {
    kAbort,     ///< The step failed: `about` is the rank at fault, `text` says why.
    kTimeout,   ///< Like kAbort, where the failure is a timeout.
    kSettle,    ///< To rank 0: the sender is at the end of the step; `about` and `text` as above, or -1.
    kVerdict,   ///< From rank 0: all ranks are at the end of the step; `about` and `text` as above, or -1.
    kGiveUp,    ///< The sender goes on without a verdict; `about` and `text` say why.
    kAsk,       ///< Asks what the receiver waits for; `about` numbers the question.
    kStanding,  ///< The answer to question `about`.
    kDepart,    ///< The sender's program has ended; `about` is the sender if it failed, or -1.
  };
  Kind kind = Kind::kAbort;
  std::uint64_t step = 0;  ///< Steps that the sender has settled.
  std::int32_t about = -1;
  std::string text = {};
};

/// Moves messages and notices between one rank and the others.
///
/// Messages: `send`, `post` and `take` are called by several threads of the rank. Those with one tag, from one rank to
/// another, are taken in the order in which they were sent. On a device with streams, completion is stream-ordered:
/// `send` takes tensors that the current stream has still to write, `take` returns tensors that the current stream may
/// read; the host waits for neither.
///
/// Notices are few and small. They arrive even while the receiving rank computes, and never before a message that the
/// same rank sent earlier.
class Channel {
 public:
  using Clock = std::chrono::steady_clock;
  /// Called with every notice that arrives, from any thread. A returned notice is sent back to `from`. Must not call
  /// the channel.
  using Listener = std::function<std::optional<Notice>(RankId from, const Notice& notice)>;

  /// As the step of a message: it is of no step, and none drops it. Its tensors of the host stay there, also on a rank
  /// that computes elsewhere: they may be more than its device has room for beside a step. When `take` fails because
  /// the host has no room either, the message is dropped.
  static constexpr std::uint64_t kNoStep = UINT64_MAX;

  virtual ~Channel() = default;

  [[nodiscard]] virtual RankId rank() const = 0;
  [[nodiscard]] virtual int ranks() const = 0;
  /// The communication model that schedules are verified for.
  [[nodiscard]] virtual CommModel model() const = 0;
  /// The clock that this rank's actions are timed with, in seconds. A channel that simulates a network has its own.
  [[nodiscard]] virtual double now() const { return seconds_now(); }

  /// Starts sending and returns at once; does not wait for the receiver. Holds the tensors until they are sent; nobody
  /// may change them in place before. `step`: the sender's, for `end_step`, or kNoStep.
  virtual void send(RankId to, const Tag& tag, Message message, std::uint64_t step) = 0;
  /// A hint that `take` will be called for this message, so that its transfer may start. May do nothing.
  virtual void post(RankId from, const Tag& tag) = 0;
  /// Returns the message if all of it has arrived. Otherwise returns nothing, and its transfer may start.
  virtual std::optional<Message> take(RankId from, const Tag& tag) = 0;
  /// Whether a part of the message is here.
  virtual bool is_coming(RankId from, const Tag& tag) = 0;
  /// Called when the step before `next` has ended. If it failed, messages of steps before `next` are dropped, also
  /// those that arrive later.
  virtual void end_step(std::uint64_t next, bool failed) = 0;

  /// Set once, before anything is sent.
  virtual void listen(Listener listener) = 0;
  virtual void tell(RankId to, const Notice& notice) = 0;

  /// Makes progress on transfers. Returns a count of what has arrived so far, for `wait_for_news`.
  virtual std::uint64_t news() = 0;
  /// Returns when something may have arrived since `news` returned `seen`, and at `until` at the latest. `since`: when
  /// the caller's wait began.
  virtual void wait_for_news(std::uint64_t seen, Clock::time_point since, Clock::time_point until) = 0;
  /// Makes all waiting threads of this rank check again.
  virtual void wake() = 0;

  /// A group that uses the transport's own collectives; null: a MessageGroup is used. All members call it with the same
  /// members, id and name; MessageGroup says what they are.
  virtual std::unique_ptr<Group> make_group(Transport& /*transport*/, const std::vector<RankId>& /*members*/,
                                            std::int32_t /*id*/, Timeout /*timeout*/, const std::string& /*name*/) {
    return nullptr;
  }
  /// Called by all ranks after a failed step, while no thread uses a group: brings the transport's own collectives into
  /// step again. Throws TransportError where it cannot.
  virtual void recover(Transport& /*transport*/, Timeout /*timeout*/) {}
};

}  // namespace stagecraft

#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nccl/watch.h"
#include "sockets/socket_channel.h"
#include "stagecraft/transport/group.h"
#include "stagecraft/transport/transport.h"
#include "support/forwarding_channel.h"

/// An NCCL that only notes what is issued to it, on a CPU whose events end when the test says so. A program that links
/// it exports its symbols: NCCL's functions are looked up by name.
namespace stagecraft::noting_nccl {

inline constexpr std::uint64_t kAll = UINT64_MAX;
extern std::atomic<std::uint64_t> recorded;    // events
extern std::atomic<std::uint64_t> ended;       // events up to this number; kAll unless a test says less
extern std::atomic<int> slow_rank;             // connects later than the others
extern std::atomic<int> result_of_connecting;  // NCCL's: 0 is success
extern std::atomic<bool> has_failed;           // the device: events give kDeviceError
extern std::atomic<bool> is_stuck;             // what is issued: threads that wait for a stream wait on
extern std::atomic<int> waiting;               // such threads

inline constexpr const char* kDeviceError = "CUDA error: device-side assert triggered";

/// The second stream waits for the first.
using Order = std::vector<std::pair<c10::StreamId, c10::StreamId>>;
extern Order blocked;                       // by the thread that is observed
extern std::vector<std::uint64_t> awaited;  // the numbers of the events that it made streams wait for
extern std::atomic<std::thread::id> observed;

/// What was issued to one rank's communicator.
using Log = std::vector<std::string>;

/// How often that of this id and rank was aborted.
int times_aborted(const std::string& id, int rank);

/// Whether it becomes true in time.
bool eventually(const std::function<bool()>& is_so);

/// Throws in place of the message that arrives as the n-th from now on.
class FailingChannel : public ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  /// 0: at none.
  void fail_at(int message) { left_ = message; }
  std::optional<Message> take(RankId from, const Tag& tag) override {
    std::optional<Message> message = ForwardingChannel::take(from, tag);
    if (message && left_ > 0 && --left_ == 0) throw std::runtime_error("the message was lost");
    return message;
  }

 private:
  int left_ = 0;
};

/// The ends of a socket between two ranks.
std::pair<sockets::Socket, sockets::Socket> connected_sockets();

/// A rank of which there is no more than the end of a socket.
struct FarRank {
  sockets::Socket socket;

  /// Tells the other end by which communicator it sends.
  void introduce() const;
  /// The envelope of a message with one tensor of a device, which NCCL would bring; empty sizes: without any.
  void announce(const Tag& tag, const std::vector<std::int64_t>& sizes) const;
  void tell(const Notice& notice) const;
  /// Says that it needs nothing of the other end any more.
  void release() const;

 private:
  void send(std::uint32_t kind, std::string text) const;
};

/// One of several ranks, with a group of all.
struct Rank {
  /// `sockets`: to the others, by rank.
  Rank(int number, std::vector<sockets::Socket> sockets);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  [[nodiscard]] int number() const { return transport->rank().value; }
  /// Null on ranks that are not members; all ranks call it.
  [[nodiscard]] std::unique_ptr<Group> group_of(const std::vector<int>& members) const;
  /// One step, in which this rank loses the message of that number (0: none). Returns the failure that it ended with,
  /// if any: the same on all ranks.
  std::string step(const std::function<void()>& work, int lost_message);

  std::shared_ptr<nccl::Watch> watch;
  std::vector<std::shared_ptr<sockets::Line>> lines;  // by rank; null for this one
  FailingChannel* channel = nullptr;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Group> group;
};

/// Runs the program on so many ranks, which are threads. Returns what they issued to groups, by communicator and then
/// by rank, after the sum that each communicator begins with.
std::vector<std::vector<Log>> run(int ranks, const std::function<void(Rank&)>& program);

}  // namespace stagecraft::noting_nccl

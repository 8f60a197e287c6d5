#pragma once

#include <c10/core/Event.h>
#include <mpi.h>

#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "envelope.h"
#include "recycled_memory.h"
#include "roll_call.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft::mpi {

/// A process's end of an MPI world. Every MPI call after set-up is made here, under one lock: by the rank's thread when
/// it sends or waits, and by a helper thread now and then, so that messages move on while the rank computes.
///
/// A message is an envelope, which the receiver always has room for, and blobs, which stay with the sender until the
/// receiver asks for the message: a rank holds what it is about to use, not what others have made in advance.
class Engine : public Transport {
 public:
  /// `has_own_core`: nobody else computes where this process waits.
  Engine(MPI_Comm communicator, std::optional<at::Device> device, bool has_own_core);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] RankId rank() const override { return rank_; }
  [[nodiscard]] int ranks() const override { return ranks_; }

  void send(RankId to, const Tag& tag, Message message) override;
  void post_receive(RankId from, const Tag& tag) override;
  Message receive(RankId from, const Tag& tag, Timeout timeout) override;
  void abort(const Failure& failure) override;
  std::optional<Failure> settle(Timeout timeout) override;
  [[nodiscard]] std::uint64_t failed_steps() const override;

  /// One round of whatever can move on. Returns whether something is under way.
  bool progress_if_free();
  /// Tells all others that this rank's program has ended, and how.
  void depart(bool failed, const std::string& message);
  /// Whether all others have departed; throws nothing.
  bool all_departed();
  /// Of those that have departed.
  std::optional<Failure> failed_departure();
  /// The process of a rank is gone or out of reach: whoever waits gets AbortedError with this text.
  void mark_lost(RankId rank, const std::string& text);
  /// The rank whose process was lost first.
  std::optional<Failure> lost();
  /// What this rank is waiting for; empty when it is not.
  std::string pending();
  /// No more messages, in either direction.
  void close();

 private:
  /// A part of a message outside its envelope.
  struct Blob {
    at::Tensor memory;  // what MPI reads or writes; kept alive until it is done
    std::string text;   // of a long header
    char* data = nullptr;
    std::int64_t bytes = 0;
  };
  struct Outgoing {
    RankId to;
    int mpi_tag = 0;
    std::string envelope;
    std::vector<Blob> blobs;
    std::vector<c10::Event> written;  // on a device: when the blobs may be read
    bool started = false;             // the blobs
    std::vector<MPI_Request> requests;
  };
  struct Incoming {
    RankId from;
    Envelope envelope;
    std::vector<at::Tensor> tensors;
    std::vector<c10::Event> free;  // on a device: when the memory may be written
    bool started = false;
    bool issued = false;
    bool is_complete = false;
    std::vector<MPI_Request> requests;
  };
  using Key = std::pair<RankId, Tag>;

  void check_rank(RankId rank) const;
  void post(RankId to, Envelope envelope, Message message);
  void tell_all(Kind kind, const std::optional<Failure>& failure);
  void start_sending(Outgoing& outgoing);
  void start_receiving(Incoming& incoming);
  void issue_receives(Incoming& incoming);
  void complete(Incoming& incoming);
  /// Returns whether a message is being received.
  bool progress();
  void progress_envelopes();
  void arrive(RankId from, Envelope envelope);
  std::optional<Message> take(RankId from, const Tag& tag);
  Message handed_over(Incoming incoming) const;
  template <typename Done, typename What, typename TimedOut>
  void wait_until(const Done& is_done, Timeout timeout, const What& what, const TimedOut& timed_out);
  template <typename What>
  void give_up_if_gone(RankId from, const What& what) const;
  Incoming* find(RankId from, const Tag& tag);
  [[nodiscard]] bool is_left_over(const Envelope& envelope) const;
  [[nodiscard]] int mpi_tag_of(std::uint64_t sequence) const;

  mutable std::mutex mutex_;
  MPI_Comm communicator_;
  std::optional<at::Device> device_;
  std::optional<c10::Stream> copy_stream_;
  RankId rank_;
  int ranks_ = 0;
  int largest_tag_ = 0;
  bool device_is_direct_ = false;
  bool has_own_core_;
  bool is_closed_ = false;

  struct Slot {
    std::vector<char> buffer;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::vector<Slot> slots_;  // receive envelopes in turn
  std::size_t next_slot_ = 0;

  RecycledMemory memory_;
  RollCall roll_call_;
  std::vector<std::uint64_t> sent_;  // messages so far, by receiver
  std::list<Outgoing> outgoing_;
  std::list<Incoming> incoming_;
  std::set<Key> wanted_;
  std::list<std::string> pending_;  // what threads of this rank wait for; empty texts in the first moments
};

}  // namespace stagecraft::mpi

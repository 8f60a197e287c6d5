#pragma once

#include <c10/core/Event.h>
#include <mpi.h>

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "envelope.h"
#include "recycled_memory.h"
#include "roll_call.h"
#include "stagecraft/transport/transport.h"
#include "waiting.h"

namespace stagecraft::mpi {

/// A process's end of an MPI world. Every MPI call after set-up is made here, under one lock: by the rank's thread when
/// it sends or waits, and by a helper thread now and then, so that messages move on while the rank computes.
///
/// A message is an envelope, which the receiver always has room for, and blobs, which stay with the sender until the
/// receiver asks for the message: a rank holds what it is about to use, not what others have made in advance.
class Engine : public Transport {
 public:
  /// `has_own_core`: nobody else computes where this process waits. `activity`: what the rank is doing, for others that
  /// wait for it; from any thread.
  Engine(MPI_Comm communicator, std::optional<at::Device> device, bool has_own_core,
         std::function<std::string()> activity);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] RankId rank() const override { return rank_; }
  [[nodiscard]] int ranks() const override { return ranks_; }

  void send(RankId to, const Tag& tag, Message message) override;
  void post_receive(RankId from, const Tag& tag) override;
  Message receive(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose) override;
  void abort(const Failure& failure) override;
  std::optional<Failure> settle(Timeout timeout) override;
  void give_up(const Failure& failure) override;
  [[nodiscard]] std::optional<Failure> over() const override;
  void set_resting(bool resting) override { is_resting_ = resting; }
  [[nodiscard]] std::uint64_t failed_steps() const override;

  enum class Load : std::uint8_t {
    kIdle,     ///< Nothing is expected.
    kWaiting,  ///< Some message is wanted that has not come yet.
    kMoving,   ///< Some message is on its way.
  };
  /// One round of whatever can move on.
  Load progress_if_free();
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
  /// Whether a wait of this step, on any rank, took too long: some rank does not do what the others wait for.
  bool is_stuck();
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
  /// What nobody wants. It is received all the same, for its sender to get rid of it.
  struct Drop {
    RankId from;
    int mpi_tag = 0;
    std::vector<std::int64_t> pieces;  // bytes of those that have not come, the next one last
  };
  using Key = std::pair<RankId, Tag>;
  using Arrivals = std::multimap<Key, Incoming>;  // those alike in the order of their coming
  struct Slot {
    std::vector<char> buffer;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Pending {
    Wait wait;
    std::chrono::steady_clock::time_point begin;
  };

  void check_rank(RankId rank) const;
  void receive_envelope(Slot& slot);
  void post(RankId to, Envelope envelope, Message message);
  void tell(RankId to, Kind kind, std::int32_t about, const std::string& text);
  void tell_all(Kind kind, const std::optional<Failure>& failure);
  void start_sending(Outgoing& outgoing);
  void start_receiving(Arrivals::iterator arrival);
  void try_receiving(Arrivals::iterator arrival);
  void allocate(Incoming& incoming);
  void issue_receives(Arrivals::iterator arrival);
  void drop(Arrivals::iterator arrival);
  void progress_drops();
  /// True when the message is no longer in need of MPI.
  bool move_on(Arrivals::iterator arrival);
  void finish_receiving(Arrivals::iterator arrival);
  void drop_left_over();
  /// Returns whether a message is being received. `thoroughly`: looks at everything that has been sent.
  bool progress(bool thoroughly = false);
  void progress_sends(std::size_t most);
  void progress_envelopes();
  void arrive(RankId from, Envelope envelope);
  void hear(RankId from, const Envelope& envelope);
  std::optional<Message> take(RankId from, const Tag& tag);
  Message handed_over(Incoming incoming) const;
  template <typename Done, typename Limit>
  void wait_until(Wait wait, Timeout timeout, const Done& is_done, const Limit& limit);
  template <typename Done>
  bool inquire(std::unique_lock<std::mutex>& lock, const Wait& wait, Timeout timeout, const Done& is_done);
  [[nodiscard]] Standing own_standing() const;
  void give_up_because(const Failure* reason, const Wait& wait) const;
  Arrivals::iterator find(RankId from, const Tag& tag);
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
  std::function<std::string()> activity_;
  bool is_closed_ = false;

  std::vector<Slot> slots_;  // receive envelopes in turn
  std::size_t next_slot_ = 0;

  RecycledMemory memory_;
  RollCall roll_call_;
  std::vector<std::uint64_t> sent_;  // messages so far, by receiver
  std::list<Outgoing> outgoing_;
  Arrivals arrivals_;
  std::vector<Arrivals::iterator> moving_;  // those that MPI is receiving
  std::set<Key> wanted_;
  // One piece after the other, because they land in one place; it is there from the beginning, for the case that memory
  // is short.
  std::deque<Drop> drops_;
  std::unique_ptr<char[]> dropped_;
  MPI_Request drop_request_ = MPI_REQUEST_NULL;
  std::list<Pending> pending_;  // what threads of this rank wait for
  // One that took too long: it counts until the rank waits again, so that it is not taken for one that goes on.
  std::optional<Wait> given_up_;
  bool has_timed_out_ = false;  // a wait of this step
  std::atomic<bool> is_resting_ = false;
  std::atomic<std::thread::id> main_thread_ = std::this_thread::get_id();  // that settles steps
  std::map<std::int32_t, std::map<std::int32_t, Standing>> inquiries_;     // by question and rank: answers so far
  std::int32_t last_inquiry_ = 0;
};

}  // namespace stagecraft::mpi

#pragma once

#include <c10/core/Event.h>
#include <mpi.h>

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "recycled_memory.h"
#include "stagecraft/transport/channel.h"
#include "wire/parcel.h"

namespace stagecraft::mpi {

using namespace wire;

/// A process's end of an MPI world. Every MPI call after set-up is made here, under one lock: by the rank's thread when
/// it sends or waits, and by a helper thread now and then, so that messages move on while the rank computes.
///
/// A message is an envelope, which the receiver always has room for, and blobs, which stay with the sender until the
/// receiver asks for the message: a rank holds what it is about to use, not what others have made in advance.
class MpiChannel : public Channel {
 public:
  /// `has_own_core`: a waiting thread may spin, because no other process computes on its core.
  MpiChannel(MPI_Comm communicator, std::optional<at::Device> device, bool has_own_core);
  ~MpiChannel() override;
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;

  [[nodiscard]] RankId rank() const override { return rank_; }
  [[nodiscard]] int ranks() const override { return ranks_; }
  [[nodiscard]] CommModel model() const override { return CommModel::kTagged; }

  void send(RankId to, const Tag& tag, Message message, std::uint64_t step) override;
  void post(RankId from, const Tag& tag) override;
  std::optional<Message> take(RankId from, const Tag& tag) override;
  bool is_coming(RankId from, const Tag& tag) override;
  void end_step(std::uint64_t next, bool failed) override;
  void listen(Listener listener) override;
  void tell(RankId to, const Notice& notice) override;
  std::uint64_t news() override;
  void wait_for_news(std::uint64_t seen, Clock::time_point since, Clock::time_point until) override;
  void wake() override {}  // waits poll anyway

  enum class Load : std::uint8_t {
    kIdle,     ///< Nothing is expected.
    kWaiting,  ///< A message is wanted that has not arrived.
    kMoving,   ///< A message is being sent or received.
  };
  /// One round of progress, unless another thread has the lock.
  Load progress_if_free();
  /// Makes progress; returns whether all sends are complete and all dropped messages have been received.
  bool is_done();
  /// Stops sending and receiving.
  void close();

 private:
  /// A part of a message outside its envelope.
  struct Blob {
    at::Tensor memory;  // what MPI reads or writes; kept alive until it is done
    std::string text;   // a header that is too long for the envelope
    char* data = nullptr;
    std::int64_t bytes = 0;
  };
  struct Outgoing {
    RankId to;
    int mpi_tag = 0;
    std::string envelope;
    std::vector<Blob> blobs;
    std::vector<c10::Event> written;  // on a device: when the blobs may be read
    bool started = false;             // whether the blobs are being sent
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
  /// A message that nobody wants. It is received all the same, so that its sender can release it.
  struct Drop {
    RankId from;
    int mpi_tag = 0;
    std::vector<std::int64_t> pieces;  // bytes of those not yet received, the next one last
  };
  using Key = std::pair<RankId, Tag>;
  using Arrivals = std::multimap<Key, Incoming>;  // equal keys in the order of arrival
  struct Slot {
    std::vector<char> buffer;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void receive_envelope(Slot& slot);
  [[nodiscard]] c10::Stream copy_stream(at::Device device);
  void dispatch(RankId to, Envelope envelope, Message message);
  void dispatch(RankId to, const Notice& notice);
  void start_sending(Outgoing& outgoing);
  void start_receiving(Arrivals::iterator arrival);
  void try_receiving(Arrivals::iterator arrival);
  void allocate(Incoming& incoming);
  void issue_receives(Arrivals::iterator arrival);
  void drop(Arrivals::iterator arrival);
  void progress_drops();
  /// Returns true when the message is complete.
  bool move_on(Arrivals::iterator arrival);
  void finish_receiving(Arrivals::iterator arrival);
  void drop_left_over();
  /// One round of progress; returns whether a message is being received. `thoroughly`: checks all sends, not only some.
  bool progress(bool thoroughly = false);
  void progress_sends(std::size_t most);
  void progress_envelopes();
  void arrive(RankId from, Envelope envelope);
  void hear(RankId from, const Envelope& envelope);
  Arrivals::iterator find(RankId from, const Tag& tag);
  [[nodiscard]] bool is_left_over(const Envelope& envelope) const;
  [[nodiscard]] int mpi_tag_of(std::uint64_t sequence) const;

  std::mutex mutex_;
  MPI_Comm communicator_;
  std::optional<at::Device> device_;
  std::vector<c10::Stream> copy_streams_;  // to the host, by device
  RankId rank_;
  int ranks_ = 0;
  int largest_tag_ = 0;
  bool device_is_direct_ = false;
  bool has_own_core_;
  Listener listener_;
  bool is_closed_ = false;

  std::vector<Slot> slots_;  // receive envelopes in turn
  std::size_t next_slot_ = 0;

  RecycledMemory memory_;
  std::uint64_t first_step_ = 0;         // messages of earlier steps are dropped
  std::vector<std::uint64_t> sent_;      // messages so far, by receiver
  std::vector<Descriptions> described_;  // what this rank has described to each other one
  std::vector<Descriptions> known_;      // and each other one to this
  std::list<Outgoing> outgoing_;
  Arrivals arrivals_;
  std::vector<Arrivals::iterator> moving_;  // those that MPI is receiving
  std::set<Key> wanted_;
  // Pieces are received one at a time, into one buffer. It is allocated at the start, so that dropping works when
  // memory is short.
  std::deque<Drop> drops_;
  std::unique_ptr<char[]> dropped_;
  MPI_Request drop_request_ = MPI_REQUEST_NULL;
  std::atomic<bool> is_moving_ = false;  // what the last progress() in news() returned
};

}  // namespace stagecraft::mpi

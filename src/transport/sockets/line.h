#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "nccl/watch.h"
#include "socket.h"
#include "wire/mailbox.h"
#include "wire/parcel.h"

namespace stagecraft::sockets {

/// The connection to one other rank. Whoever sends writes as much as goes without waiting; a thread writes the rest,
/// and another one receives. They end when the other rank has said goodbye, or is lost.
///
/// Tensors of the host travel over the socket. Those of a device do too, by way of the host, unless NCCL takes them:
/// then there is a communicator for each direction, and their envelopes tell the receiver in which order they come. So
/// a transfer is always met by a receive, in whatever order the two ranks want their messages.
class Line : public std::enable_shared_from_this<Line> {
 public:
  /// What a line tells the channel. Called by its threads.
  struct Reports {
    std::shared_ptr<wire::Mailbox> mailbox;
    std::function<void(RankId from, const Notice& notice)> hear;
    std::function<void(RankId rank, const std::string& text)> lose;
    /// Whether the program of some rank has ended with a failure.
    std::function<bool()> has_any_failed;
    /// This rank cannot go on: tells all ranks why.
    std::function<void(const std::string& text)> give_up;
  };

  /// `nccl`: for tensors of its device; null: they travel by way of the host.
  Line(Socket socket, RankId own, RankId peer, std::shared_ptr<Reports> reports, std::shared_ptr<nccl::Watch> nccl)
      : socket_(std::move(socket)), own_(own), peer_(peer), reports_(std::move(reports)), nccl_(std::move(nccl)) {}

  /// Starts the threads, which own a part of the line.
  void start();

  /// Returns at once; holds the tensors until they are sent. Does nothing when the other rank is lost or has left.
  /// When NCCL fails after the envelope is sent, what follows would be taken for what is missing: nothing is sent by
  /// NCCL any more, and the run is over.
  void send(wire::Envelope envelope, Message message);
  /// Makes the current stream of the device wait until what was sent so far is read.
  void wait_for_reads();
  /// The last thing that is sent.
  void say_goodbye();
  /// Whether all that was sent is gone by then.
  bool wait_until_sent(Clock::time_point until);
  /// Whether the other rank has said goodbye or is lost by then.
  bool wait_until_over(Clock::time_point until);
  /// Whether the other rank's device has done by then what it does with this one, after this one has said goodbye, or
  /// it has said goodbye too, or is lost.
  bool wait_until_released(Clock::time_point until);

 private:
  /// What follows the two numbers that every frame begins with: its kind and its size.
  enum class Kind : std::uint32_t { kEnvelope = 1, kGoodbye = 2, kCommunicator = 3, kRelease = 4 };
  struct Head {
    std::uint32_t kind;
    std::uint32_t size;
  };
  /// Something that is being sent.
  struct Frame {
    std::string head;
    std::vector<at::Tensor> blobs;  // dense memory of the host
    std::size_t done = 0;           // bytes that are gone
  };
  using CommunicatorPtr = std::shared_ptr<nccl::Communicator>;

  [[nodiscard]] static std::string head_of(Kind kind, std::size_t size);
  [[nodiscard]] bool travels_by_nccl(const at::Tensor& tensor) const;
  void put(Frame frame);
  /// Writes without waiting, if `may_wait` is not set. Returns whether all of it is gone.
  bool write(Frame& frame, bool may_wait);
  void write_rest();
  nccl::Communicator* path_out();
  void ship(nccl::Communicator& path, const wire::Envelope& envelope, const std::vector<at::Tensor>& tensors);

  void receive();
  /// Returns false when it was the goodbye.
  bool receive_frame();
  /// Returns false at the end of the stream.
  bool fetch(void* data, std::size_t bytes);
  void need(void* data, std::size_t bytes);
  void skip(std::size_t bytes);
  void take_in(std::size_t bytes);
  bool receive_tensors(wire::Mailbox::Entry& entry);
  nccl::Communicator& path_in();
  void end_paths();
  void release();
  void lose(const std::string& what, const std::exception& why);
  void give_up(const std::string& text);
  void give_up_or_lose(const std::exception_ptr& failure);
  bool hears_why(Clock::time_point until);

  Socket socket_;
  RankId own_;
  RankId peer_;
  std::shared_ptr<Reports> reports_;
  std::shared_ptr<nccl::Watch> nccl_;

  // Only the receiving thread uses these.
  wire::Descriptions known_;  // what the peer has described
  std::vector<char> buffer_ = std::vector<char>(std::size_t{64} << 10);
  std::size_t begin_ = 0;  // what is in the buffer and not yet used
  std::size_t end_ = 0;
  CommunicatorPtr in_;
  bool is_without_nccl_ = false;  // it has failed: messages are dropped
  bool has_heard_why_ = false;    // the peer has said why the run is over

  std::mutex introducing_;
  CommunicatorPtr out_;

  std::mutex sending_;               // held while a message is being started, so that its parts stay together
  wire::Descriptions described_;     // what this rank has described to the peer
  bool has_said_goodbye_ = false;    // under `sending_`
  bool has_failed_to_ship_ = false;  // under `sending_`

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Frame> waiting_;  // not yet gone, in order
  bool is_sending_over_ = false;
  bool is_over_ = false;  // the peer has said goodbye, or is lost
  bool is_released_ = false;
};

}  // namespace stagecraft::sockets

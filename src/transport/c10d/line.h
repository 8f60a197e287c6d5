#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "mailbox.h"
#include "wire/parcel.h"

namespace stagecraft::c10d_transport {

using GroupPtr = c10::intrusive_ptr<::c10d::ProcessGroup>;
using WorkPtr = c10::intrusive_ptr<::c10d::Work>;

/// The connection to one other rank. Whoever sends starts the transfer itself; one thread releases what is sent, and
/// another receives. They end when the other rank has said goodbye, or is lost: a receive that a group has begun can be
/// left neither alone, because its memory must stay, nor cancelled, because then the group would wait for it forever.
class Line : public std::enable_shared_from_this<Line> {
 public:
  /// What a line tells the channel. Called by its threads.
  struct Reports {
    std::shared_ptr<wire::Mailbox> mailbox;
    std::function<void(RankId from, const Notice& notice)> hear;
    std::function<void(RankId rank, const std::string& text)> lose;
  };

  /// `tag`: of envelopes; blobs have the next one. No other line of the group may ever have used them.
  Line(GroupPtr group, RankId peer, int tag, std::shared_ptr<Reports> reports)
      : group_(std::move(group)), peer_(peer), tag_(tag), reports_(std::move(reports)) {}

  /// Starts the threads, which own a part of the line.
  void start();

  /// Returns at once; holds the tensors until they are sent. Does nothing when the other rank is lost or has left.
  void send(wire::Envelope envelope, Message message);
  /// The last thing that is sent.
  void say_goodbye();
  /// Whether all that was sent is gone by then.
  bool wait_until_sent(std::chrono::steady_clock::time_point until);
  /// Whether the other rank has said goodbye or is lost by then.
  bool wait_until_over(std::chrono::steady_clock::time_point until);

 private:
  /// Something that is being sent or received.
  struct Transfer {
    WorkPtr work;
    at::Tensor bytes;   // what the group reads or writes
    std::string text;   // its memory, or
    at::Tensor memory;  // its memory
  };

  void transmit(std::string bytes, int tag);
  void transmit(const at::Tensor& tensor, std::int64_t bytes);
  void add(Transfer transfer);
  void release_sent();
  void receive();
  [[nodiscard]] Transfer post_envelope() const;
  void receive_blob(char* data, std::int64_t bytes) const;
  void take_in(std::span<const char> bytes);
  void receive_tensors(wire::Envelope& envelope, std::vector<at::Tensor>& tensors) const;
  void lose(const std::string& why);

  GroupPtr group_;
  RankId peer_;
  int tag_;
  std::shared_ptr<Reports> reports_;
  wire::Descriptions known_;  // what the peer has described; of the receiving thread

  std::mutex sending_;             // held while a message is being started, so that its parts stay together
  wire::Descriptions described_;   // what this rank has described to the peer
  bool has_said_goodbye_ = false;  // under `sending_`

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Transfer> sent_;  // not yet gone
  bool is_sending_over_ = false;
  bool is_over_ = false;  // the peer has said goodbye, or is lost
};

}  // namespace stagecraft::c10d_transport

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "line.h"
#include "stagecraft/transport/channel.h"

namespace stagecraft::sockets {

/// A line to each other rank, and what has arrived on all of them.
class SocketChannel : public Channel {
 public:
  /// What the lines report, from their threads. None is called after `say_goodbye`, except `has_any_failed`.
  struct Events {
    /// The process of a rank is gone, or what NCCL moves to or from it.
    std::function<void(RankId rank, const std::string& text)> lose;
    /// See Line::Reports.
    std::function<bool()> has_any_failed;
    std::function<void(const std::string& text)> give_up;
  };

  /// `sockets`: to the other ranks, by rank; that of this one is closed. `nccl`: null if tensors of a device travel by
  /// way of the host.
  SocketChannel(RankId rank, std::vector<Socket> sockets, std::optional<at::Device> device,
                std::shared_ptr<nccl::Watch> nccl, std::function<void()> while_waiting);
  /// Stops reporting. Lines that are not over go on by themselves.
  ~SocketChannel() override;
  SocketChannel(const SocketChannel&) = delete;
  SocketChannel& operator=(const SocketChannel&) = delete;

  /// Starts receiving; called once, after `listen`.
  void start(Events events);
  /// Says goodbye to all, and reports no more losses.
  void say_goodbye();
  /// The lines; they may outlive the channel.
  [[nodiscard]] const std::vector<std::shared_ptr<Line>>& lines() const { return lines_; }

  [[nodiscard]] RankId rank() const override { return rank_; }
  [[nodiscard]] int ranks() const override { return ranks_; }
  [[nodiscard]] CommModel model() const override { return CommModel::kTagged; }
  void send(RankId to, const Tag& tag, Message message, std::uint64_t step) override;
  void post(RankId /*from*/, const Tag& /*tag*/) override {}  // messages are received as they come
  std::optional<Message> take(RankId from, const Tag& tag) override;
  bool is_coming(RankId from, const Tag& tag) override { return mailbox_->is_coming(from, tag); }
  void end_step(std::uint64_t next, bool failed) override;
  void listen(Listener listener) override;
  void tell(RankId to, const Notice& notice) override;
  std::uint64_t news() override { return mailbox_->news(); }
  void wait_for_news(std::uint64_t seen, Clock::time_point since, Clock::time_point until) override;
  void wake() override { mailbox_->wake(); }
  std::unique_ptr<Group> make_group(Transport& transport, const std::vector<RankId>& members, std::int32_t id,
                                    Timeout timeout, const std::string& name) override;
  void recover(Transport& transport, Timeout timeout) override;

 private:
  /// What the threads of the lines report to, with or without the channel.
  struct Ears;

  RankId rank_;
  int ranks_;
  std::optional<at::Device> device_;
  std::function<void()> while_waiting_;
  std::shared_ptr<nccl::Watch> nccl_;
  std::shared_ptr<wire::Mailbox> mailbox_;
  std::shared_ptr<Ears> ears_;
  std::vector<std::shared_ptr<Line>> lines_;  // by rank; null for this one
};

}  // namespace stagecraft::sockets

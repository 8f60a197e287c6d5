#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/transport/channel.h"

namespace stagecraft {

/// Hands everything on to the channel below. Channels for tests change what they are about.
class ForwardingChannel : public Channel {
 public:
  explicit ForwardingChannel(std::unique_ptr<Channel> below) : below_(std::move(below)) {}

  [[nodiscard]] RankId rank() const override { return below_->rank(); }
  [[nodiscard]] int ranks() const override { return below_->ranks(); }
  [[nodiscard]] CommModel model() const override { return below_->model(); }
  [[nodiscard]] double now() const override { return below_->now(); }
  void send(RankId to, const Tag& tag, Message message, std::uint64_t step) override {
    below_->send(to, tag, std::move(message), step);
  }
  void post(RankId from, const Tag& tag) override { below_->post(from, tag); }
  std::optional<Message> take(RankId from, const Tag& tag) override { return below_->take(from, tag); }
  bool is_coming(RankId from, const Tag& tag) override { return below_->is_coming(from, tag); }
  void end_step(std::uint64_t next, bool failed) override { below_->end_step(next, failed); }
  void listen(Listener listener) override { below_->listen(std::move(listener)); }
  void tell(RankId to, const Notice& notice) override { below_->tell(to, notice); }
  std::uint64_t news() override { return below_->news(); }
  void wait_for_news(std::uint64_t seen, Clock::time_point since, Clock::time_point until) override {
    below_->wait_for_news(seen, since, until);
  }
  void wake() override { below_->wake(); }
  std::unique_ptr<Group> make_group(Transport& transport, const std::vector<RankId>& members, std::int32_t id,
                                    Timeout timeout, const std::string& name) override {
    return below_->make_group(transport, members, id, timeout, name);
  }
  void recover(Transport& transport, Timeout timeout) override { below_->recover(transport, timeout); }

 private:
  std::unique_ptr<Channel> below_;
};

}  // namespace stagecraft

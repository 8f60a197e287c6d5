#pragma once

#include <memory>
#include <utility>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Some ranks of a world, numbered from 0 among themselves. Messages are theirs alone; steps, and who failed in them,
/// are those of the whole world.
class Part : public Transport {
 public:
  /// `members` of the whole world, this rank among them; `rank` is its place there.
  Part(std::shared_ptr<Transport> whole, std::vector<RankId> members, RankId rank)
      : whole_(std::move(whole)), members_(std::move(members)), rank_(rank) {}

  [[nodiscard]] RankId rank() const override { return rank_; }
  [[nodiscard]] int ranks() const override { return static_cast<int>(members_.size()); }

  void send(RankId to, const Tag& tag, Message message) override { whole_->send(of(to), tag, std::move(message)); }
  void post_receive(RankId from, const Tag& tag) override { whole_->post_receive(of(from), tag); }
  Message receive(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose) override {
    return whole_->receive(of(from), tag, timeout, purpose);
  }
  void abort(const Failure& failure) override { whole_->abort(failure); }
  std::optional<Failure> settle(Timeout timeout) override { return whole_->settle(timeout); }
  void give_up(const Failure& failure) override { whole_->give_up(failure); }
  [[nodiscard]] std::optional<Failure> over() const override { return whole_->over(); }
  void set_resting(bool resting) override { whole_->set_resting(resting); }
  [[nodiscard]] std::uint64_t failed_steps() const override { return whole_->failed_steps(); }
  std::int32_t new_group_id() override { return whole_->new_group_id(); }

 private:
  [[nodiscard]] RankId of(RankId rank) const {
    if (rank.index() < members_.size()) return members_[rank.index()];
    throw TransportError("there is no rank " + std::to_string(rank.value) + ": this part of the world has ranks 0 to " +
                             std::to_string(ranks() - 1),
                         rank);
  }

  std::shared_ptr<Transport> whole_;
  std::vector<RankId> members_;
  RankId rank_;
};

}  // namespace stagecraft

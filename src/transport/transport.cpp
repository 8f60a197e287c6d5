#include "stagecraft/transport/transport.h"

#include <algorithm>

#include "coordinator.h"
#include "stagecraft/transport/message_group.h"
#include "stagecraft/transport/no_messages.h"
#include "tensor_kinds.h"

namespace stagecraft {

Transport::Transport(std::unique_ptr<Channel> channel, std::function<std::string()> activity)
    : channel_(std::move(channel)), coordinator_(std::make_shared<Coordinator>(*channel_, std::move(activity))) {
  channel_->listen(
      [coordinator = coordinator_](RankId from, const Notice& notice) { return coordinator->hear(from, notice); });
}
Transport::~Transport() = default;

void Transport::check_rank(RankId rank) const {
  if (rank.value < 0 || rank.value >= ranks()) throw no_such_rank(rank, ranks());
}

void Transport::send(RankId to, const Tag& tag, Message message) {
  NoMessages::check();
  check_rank(to);
  for (const at::Tensor& tensor : message.tensors) check_can_travel(tensor);
  channel_->send(to, tag, std::move(message), coordinator_->step());
}

void Transport::send_lasting(RankId to, const Tag& tag, Message message) {
  NoMessages::check();
  check_rank(to);
  for (const at::Tensor& tensor : message.tensors) check_can_travel(tensor);
  channel_->send(to, tag, std::move(message), Channel::kNoStep);
}

Message Transport::receive_lasting(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose) {
  NoMessages::check();
  check_rank(from);
  return coordinator_->receive(from, tag, timeout, purpose, /*lasting=*/true);
}

void Transport::post_receive(RankId from, const Tag& tag) {
  NoMessages::check();
  check_rank(from);
  channel_->post(from, tag);
}

Message Transport::receive(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose) {
  NoMessages::check();
  check_rank(from);
  return coordinator_->receive(from, tag, timeout, purpose);
}

std::unique_ptr<Group> Transport::make_group(const std::vector<RankId>& members, Timeout timeout, std::string name) {
  const std::int32_t id = new_group_id();
  if (std::find(members.begin(), members.end(), rank()) == members.end()) return nullptr;
  if (auto group = channel_->make_group(*this, members, id, timeout, name)) return group;
  return std::make_unique<MessageGroup>(*this, members, id, timeout, std::move(name));
}

void Transport::abort(const Failure& failure) { coordinator_->abort(failure); }
std::optional<Failure> Transport::settle(Timeout timeout) {
  std::optional<Failure> failure = coordinator_->settle(timeout);
  if (failure) channel_->recover(*this, timeout);
  return failure;
}
void Transport::give_up(const Failure& failure) { coordinator_->give_up(failure); }
std::optional<Failure> Transport::over() const { return coordinator_->over(); }
void Transport::depart(const std::optional<std::string>& failure) { coordinator_->depart(failure); }
void Transport::set_resting(bool resting) { coordinator_->set_resting(resting); }
std::uint64_t Transport::failed_steps() const { return coordinator_->failed_steps(); }

}  // namespace stagecraft

#pragma once

#include "stagecraft/transport/group.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// A group by messages between its members, on any transport. Tensors are added up in the order of the group.
class MessageGroup : public Group {
 public:
  /// The transport outlives the group. Groups with different ids do not mix. `name` is what errors call it:
  /// "world.peers()"; by default it goes by its id. Throws InvalidArgument when this rank is not a member, or one is
  /// named twice.
  MessageGroup(Transport& transport, std::vector<RankId> members, std::int32_t id, Timeout timeout,
               std::string name = {});

  void set_resting(bool resting) override { transport_.set_resting(resting); }
  Message broadcast(Message message, int from) override;
  std::vector<Message> collect(Message own, int to) override;
  std::vector<Message> all_gather(Message own) override;
  std::vector<std::string> all_gather(const std::string& own) override;
  void barrier() override;
  void broadcast_into(const at::Tensor& tensor, int from) override;
  using Group::all_reduce;
  void all_reduce(const std::vector<at::Tensor>& tensors, Reduction reduction = Reduction::kSum) override;
  at::Tensor all_gather(const at::Tensor& own) override;
  at::Tensor reduce_scatter(const at::Tensor& tensor, Reduction reduction = Reduction::kSum) override;

 private:
  class Collective;

  [[nodiscard]] std::string text() const;
  void check_place(int place) const;
  void check_reduction(const at::Tensor& tensor, Reduction reduction) const;
  /// Of the tensors of all members, by place.
  [[nodiscard]] static at::Tensor reduced(const std::vector<at::Tensor>& parts, Reduction reduction);

  Transport& transport_;
  std::int32_t id_;
  Timeout timeout_;
  std::string name_;
  std::string_view call_;  // that is made of several collectives; empty: each is a call
  std::int32_t collectives_ = 0;
  std::uint64_t failed_steps_ = 0;  // when collectives_ began to count
};

}  // namespace stagecraft

#pragma once

#include "stagecraft/transport/group.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Collectives made of point-to-point messages, on any transport. Sums are computed in the order of the members.
class MessageGroup : public Group {
 public:
  /// The transport must outlive the group. Groups with different ids do not mix. `name`, such as "world.peers()", is
  /// used in errors; by default it is made from the id. Throws InvalidArgument when this rank is not a member, or when
  /// a rank is named twice or does not exist.
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

 protected:
  /// Throws InvalidArgument for a tensor that cannot be reduced so.
  void check_reduction(const at::Tensor& tensor, Reduction reduction) const;
  /// While it lives, errors name this call for the collectives that it is made of. `call` must outlive it.
  During naming(std::string_view call) { return {call_, call}; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::int32_t id() const { return id_; }
  /// Of the transport; the same on all members that take part in a collective.
  [[nodiscard]] std::uint64_t failed_steps() const { return transport_.failed_steps(); }

 private:
  class Collective;

  [[nodiscard]] std::string text() const;
  void check_place(int place) const;
  /// Reduces the tensors of all members, given by place.
  [[nodiscard]] static at::Tensor reduced(const std::vector<at::Tensor>& parts, Reduction reduction);

  Transport& transport_;
  std::int32_t id_;
  Timeout timeout_;
  std::string name_;
  std::string_view call_;  // name of a call made of several collectives; empty: each is a call of its own
  std::int32_t collectives_ = 0;
  std::uint64_t failed_steps_ = 0;  // of the transport, when collectives_ was last 0
};

}  // namespace stagecraft

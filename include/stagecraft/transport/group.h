#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/transport/transport.h"

/// Ranks that do something together.
namespace stagecraft {

enum class Reduction : std::uint8_t { kSum, kMean, kMax };

/// Some ranks of a world, in an order that all of them know. Every collective is called by all members, in the same
/// order, with tensors of the same type and shape; a member's place is its position in the list.
///
/// Waits end as those of the transport do. One thread at a time uses a group; different groups do not mix, even of the
/// same ranks, if their ids differ.
class Group {
 public:
  /// The transport outlives the group. `name` is what errors call it: "world.peers()"; by default it goes by its id.
  /// Throws InvalidArgument when this rank is not a member, or one is named twice.
  Group(Transport& transport, std::vector<RankId> members, std::int32_t id, Timeout timeout, std::string name = {});

  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  /// Of this rank.
  [[nodiscard]] int place() const { return place_; }
  [[nodiscard]] const std::vector<RankId>& members() const { return members_; }

  /// Until the end of its scope, errors call the group's collectives by what they are for.
  class [[nodiscard]] During {
   public:
    During(std::string_view& words, std::string_view what) : words_(words), before_(words) { words_ = what; }
    ~During() { words_ = before_; }
    During(const During&) = delete;
    During& operator=(const During&) = delete;

   private:
    std::string_view& words_;
    std::string_view before_;
  };
  /// `what` ("the average of the gradients of stage 3") outlives what is returned, and the group is not moved
  /// meanwhile.
  During during(std::string_view what) { return {what_, what}; }

  /// See Transport::set_resting.
  void set_resting(bool resting) const { transport_.set_resting(resting); }

  // Messages. They are handed over: nobody changes their tensors in place afterwards.
  /// Every member gets the message of member `from`; it is not used elsewhere.
  Message broadcast(Message message, int from);
  /// Member `to` gets the messages of all, its own included, by place; the others get nothing.
  std::vector<Message> collect(Message own, int to);
  /// Every member gets the messages of all, by place.
  std::vector<Message> all_gather(Message own);
  /// What every member said, by place.
  std::vector<std::string> all_gather(const std::string& own);
  /// Returns when all members have called it.
  void barrier();

  // Tensors. The caller may change them as soon as the call returns. The result is the same on all members, bit for
  // bit: they are added up in the order of the group.
  /// Into `tensor`, from member `from`.
  void broadcast_into(const at::Tensor& tensor, int from);
  /// In place. 16-bit floats are added up as 32-bit ones, and rounded once.
  void all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum);
  /// Several at once, a few hundred at most: members wait for each other only twice.
  void all_reduce(const std::vector<at::Tensor>& tensors, Reduction reduction = Reduction::kSum);
  /// One after the other along dimension 0; there, sizes may differ.
  at::Tensor all_gather(const at::Tensor& own);
  /// This member's part of the reduced tensor, cut along dimension 0 into as many equal parts as there are members.
  at::Tensor reduce_scatter(const at::Tensor& tensor, Reduction reduction = Reduction::kSum);

 private:
  class Collective;

  [[nodiscard]] std::string text() const;
  void check_place(int place) const;
  void check_reduction(const at::Tensor& tensor, Reduction reduction) const;
  /// Of the tensors of all members, by place.
  [[nodiscard]] at::Tensor reduced(const std::vector<at::Tensor>& parts, Reduction reduction) const;

  Transport& transport_;
  std::vector<RankId> members_;
  std::int32_t id_;
  Timeout timeout_;
  std::string name_;
  std::string_view what_;  // collectives are for; empty: not said
  std::string_view call_;  // that is made of several collectives; empty: each is a call
  int place_ = -1;
  std::int32_t collectives_ = 0;
  std::uint64_t failed_steps_ = 0;  // when collectives_ began to count
};

}  // namespace stagecraft

#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stagecraft/transport/message.h"

/// Collectives over some ranks of a world.
namespace stagecraft {

enum class Reduction : std::uint8_t { kSum, kMean, kMax };

/// Some ranks of a world, in an order that all of them know. Every collective is called by all members, in the same
/// order, with tensors of the same type and shape; a member's place is its position in the list.
///
/// Waits time out and abort like those of Transport. Only one thread at a time may use a group; collectives of
/// different groups are independent, even over the same ranks. On a device they are stream-ordered: threads that use
/// different groups at the same time need streams of their own. World makes the groups (World::everyone and others): a
/// MessageGroup, or what its transport provides.
class Group {
 public:
  Group(std::vector<RankId> members, int place) : members_(std::move(members)), place_(place) {}
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  /// This rank's place.
  [[nodiscard]] int place() const { return place_; }
  [[nodiscard]] const std::vector<RankId>& members() const { return members_; }

  /// While it lives, errors of the group's collectives name the purpose given to `during`.
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
  /// `what`, for example "the average of the gradients of stage 3", must outlive the returned object.
  During during(std::string_view what) { return {what_, what}; }

  /// See Transport::set_resting.
  virtual void set_resting(bool resting) = 0;

  // Messages. Nobody may change their tensors in place after the call.
  /// Every member gets the message of member `from`; the argument of the other members is ignored.
  virtual Message broadcast(Message message, int from) = 0;
  /// Member `to` gets the messages of all, its own included, by place; the others get nothing.
  virtual std::vector<Message> collect(Message own, int to) = 0;
  /// Every member gets the messages of all, by place.
  virtual std::vector<Message> all_gather(Message own) = 0;
  /// Every member gets the strings of all, by place.
  virtual std::vector<std::string> all_gather(const std::string& own) = 0;
  /// Returns when all members have called it.
  virtual void barrier() = 0;

  // Tensors. The caller may change them as soon as the call returns. The result is the same on all members, bit for
  // bit.
  /// Copies the tensor of member `from` into `tensor` on every member.
  virtual void broadcast_into(const at::Tensor& tensor, int from) = 0;
  /// Reduces in place. 16-bit floats are summed as 32-bit ones and rounded once.
  void all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum) {
    all_reduce(std::vector<at::Tensor>{tensor}, reduction);
  }
  /// Reduces several tensors, a few hundred at most, in two rounds of messages in all.
  virtual void all_reduce(const std::vector<at::Tensor>& tensors, Reduction reduction = Reduction::kSum) = 0;
  /// Concatenates the tensors of all members along dimension 0, in which their sizes may differ.
  virtual at::Tensor all_gather(const at::Tensor& own) = 0;
  /// Reduces, cuts the result along dimension 0 into size() equal parts, and returns this member's part.
  virtual at::Tensor reduce_scatter(const at::Tensor& tensor, Reduction reduction = Reduction::kSum) = 0;

 protected:
  std::string_view what_;  // the purpose set by during(); may be empty

 private:
  std::vector<RankId> members_;
  int place_;
};

}  // namespace stagecraft

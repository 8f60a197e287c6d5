#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stagecraft/transport/message.h"

/// Ranks that do something together.
namespace stagecraft {

enum class Reduction : std::uint8_t { kSum, kMean, kMax };

/// Some ranks of a world, in an order that all of them know. Every collective is called by all members, in the same
/// order, with tensors of the same type and shape; a member's place is its position in the list.
///
/// Waits end as those of the transport do. One thread at a time uses a group; different groups do not mix, even of the
/// same ranks. The world makes them (World::everyone and others): by messages, or by what its transport has.
class Group {
 public:
  Group(std::vector<RankId> members, int place) : members_(std::move(members)), place_(place) {}
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  /// This rank's.
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
  /// `what` ("the average of the gradients of stage 3") outlives what is returned.
  During during(std::string_view what) { return {what_, what}; }

  /// See Transport::set_resting.
  virtual void set_resting(bool resting) = 0;

  // Messages. They are handed over: nobody changes their tensors in place afterwards.
  /// Every member gets the message of member `from`; it is not used elsewhere.
  virtual Message broadcast(Message message, int from) = 0;
  /// Member `to` gets the messages of all, its own included, by place; the others get nothing.
  virtual std::vector<Message> collect(Message own, int to) = 0;
  /// Every member gets the messages of all, by place.
  virtual std::vector<Message> all_gather(Message own) = 0;
  /// What every member said, by place.
  virtual std::vector<std::string> all_gather(const std::string& own) = 0;
  /// Returns when all members have called it.
  virtual void barrier() = 0;

  // Tensors. The caller may change them as soon as the call returns. The result is the same on all members, bit for
  // bit.
  /// Into `tensor`, from member `from`.
  virtual void broadcast_into(const at::Tensor& tensor, int from) = 0;
  /// In place. 16-bit floats are added up as 32-bit ones, and rounded once.
  void all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum) {
    all_reduce(std::vector<at::Tensor>{tensor}, reduction);
  }
  /// Several at once, a few hundred at most: members wait for each other only twice.
  virtual void all_reduce(const std::vector<at::Tensor>& tensors, Reduction reduction = Reduction::kSum) = 0;
  /// One after the other along dimension 0; there, sizes may differ.
  virtual at::Tensor all_gather(const at::Tensor& own) = 0;
  /// This member's part of the reduced tensor, cut along dimension 0 into as many equal parts as there are members.
  virtual at::Tensor reduce_scatter(const at::Tensor& tensor, Reduction reduction = Reduction::kSum) = 0;

 protected:
  std::string_view what_;  // collectives are for; empty: not said

 private:
  std::vector<RankId> members_;
  int place_;
};

}  // namespace stagecraft

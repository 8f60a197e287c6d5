#pragma once

#include "support/forwarding_channel.h"

namespace stagecraft::conformance {

/// Moves the tensors of every message to a device before they are sent, and back to the host when they have come: tests
/// of the host's tensors look at the device's way too.
class RelocatingChannel : public ForwardingChannel {
 public:
  RelocatingChannel(std::unique_ptr<Channel> below, at::Device device)
      : ForwardingChannel(std::move(below)), device_(device) {}

  void send(RankId to, const Tag& tag, Message message, std::uint64_t step) override {
    move(message, device_);
    ForwardingChannel::send(to, tag, std::move(message), step);
  }
  std::optional<Message> take(RankId from, const Tag& tag) override {
    std::optional<Message> message = ForwardingChannel::take(from, tag);
    if (message) move(*message, at::kCPU);
    return message;
  }

 private:
  static void move(Message& message, at::Device device) {
    for (at::Tensor& tensor : message.tensors) {
      if (!tensor.defined() || tensor.is_meta() || tensor.device() == device) continue;
      const bool wants_gradient = tensor.requires_grad();
      tensor = tensor.detach().to(device).set_requires_grad(wants_gradient);
    }
  }

  at::Device device_;
};

/// A group whose collectives work on a device: moves the tensors there and back.
class RelocatingGroup : public Group {
 public:
  RelocatingGroup(std::unique_ptr<Group> inner, at::Device device)
      : Group(inner->members(), inner->place()), inner_(std::move(inner)), device_(device) {}

  void set_resting(bool resting) override { inner_->set_resting(resting); }
  Message broadcast(Message message, int from) override { return inner_->broadcast(std::move(message), from); }
  std::vector<Message> collect(Message own, int to) override { return inner_->collect(std::move(own), to); }
  std::vector<Message> all_gather(Message own) override { return inner_->all_gather(std::move(own)); }
  std::vector<std::string> all_gather(const std::string& own) override { return inner_->all_gather(own); }
  void barrier() override { inner_->barrier(); }
  void broadcast_into(const at::Tensor& tensor, int from) override {
    const During purpose = inner_->during(what_);
    const at::Tensor there = to_device(tensor);
    inner_->broadcast_into(there, from);
    bring_back(there, tensor);
  }
  using Group::all_reduce;
  void all_reduce(const std::vector<at::Tensor>& tensors, Reduction reduction) override {
    const During purpose = inner_->during(what_);
    std::vector<at::Tensor> there;
    for (const at::Tensor& tensor : tensors) there.push_back(to_device(tensor));
    inner_->all_reduce(there, reduction);
    for (std::size_t i = 0; i < tensors.size(); ++i) bring_back(there[i], tensors[i]);
  }
  at::Tensor all_gather(const at::Tensor& own) override {
    const During purpose = inner_->during(what_);
    return inner_->all_gather(to_device(own)).cpu();
  }
  at::Tensor reduce_scatter(const at::Tensor& tensor, Reduction reduction) override {
    const During purpose = inner_->during(what_);
    return inner_->reduce_scatter(to_device(tensor), reduction).cpu();
  }

 private:
  /// One that cannot be written stays, so that it is refused.
  [[nodiscard]] at::Tensor to_device(const at::Tensor& tensor) const {
    const bool is_expanded = tensor.layout() == at::kStrided && !tensor.is_non_overlapping_and_dense() &&
                             tensor.nbytes() > tensor.storage().nbytes();
    return is_expanded ? tensor : tensor.detach().to(device_);
  }
  static void bring_back(const at::Tensor& there, const at::Tensor& tensor) {
    const at::NoGradGuard no_graph;
    if (!there.is_same(tensor)) tensor.copy_(there);
  }

  std::unique_ptr<Group> inner_;
  at::Device device_;
};

}  // namespace stagecraft::conformance

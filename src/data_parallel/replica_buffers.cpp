#include "replica_buffers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace stagecraft {

void make_stages_equal(Group& peers, const std::vector<Stage>& stages) {
  const at::NoGradGuard no_grad;
  for (const Stage& stage : stages) {
    const std::string what = "the first weights of stage " + std::to_string(stage.index().value);
    const auto during = peers.during(what);
    for (const NamedTensors* tensors : {&stage.parameters(), &stage.buffers()}) {
      for (const auto& [name, tensor] : *tensors) {
        if (tensor.defined()) peers.broadcast_into(tensor, 0);
      }
    }
  }
}

void ReplicaBuffers::spread(std::size_t stage) {
  if (peers_.size() == 1) return;
  constexpr std::size_t kBuffersAtOnce = 256;  // the most that one message can describe
  const NamedTensors& buffers = stages_[stage].buffers();
  std::vector<at::Tensor>& sent = sent_[stage];
  sent.resize(buffers.size());
  for (std::size_t begin = 0; begin < buffers.size(); begin += kBuffersAtOnce) {
    const std::size_t end = std::min(begin + kBuffersAtOnce, buffers.size());
    Message changed;
    for (std::size_t i = begin; i < end && peers_.place() == 0; ++i) {
      const at::Tensor& buffer = buffers[i].second;
      at::Tensor& copy = changed.tensors.emplace_back();
      if (!buffer.defined() || (sent[i].defined() && at::equal(sent[i], buffer))) continue;
      copy = sent[i] = buffer.detach().clone();
    }
    const Message news = peers_.broadcast(std::move(changed), 0);
    for (std::size_t i = begin; i < end && peers_.place() != 0; ++i) {
      const at::Tensor& value = news.tensors.at(i - begin);
      if (value.defined()) buffers[i].second.detach().copy_(value);
    }
  }
}

}  // namespace stagecraft

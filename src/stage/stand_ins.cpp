#include "stagecraft/stage/stand_ins.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

namespace stagecraft {
namespace {

at::Tensor meta_like(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta).requires_grad(false));
}

/// Gives a tensor the data and shape of another one, in place: all holders see the change.
void become(const at::Tensor& tensor, const at::Tensor& other) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
}

Value zeros_like(const Value& value, at::Device device) {
  return value.map_tensors([&](const at::Tensor& tensor) {
    return tensor.defined() ? at::zeros(tensor.sizes(), tensor.options().device(device)) : tensor;
  });
}

}  // namespace

void StandIns::replace(const at::Tensor& tensor, const at::Tensor& stand_in) {
  replaced_.push_back({tensor, tensor.detach()});
  become(tensor, stand_in);
}

StandIns StandIns::on_meta(const Stage& stage) {
  StandIns stand_ins;
  for (const NamedTensors* tensors : {&stage.parameters(), &stage.buffers()}) {
    for (const auto& [name, tensor] : *tensors) {
      if (!tensor.defined() || tensor.is_meta()) continue;  // or listed twice and already replaced
      stand_ins.replace(tensor, meta_like(tensor));
    }
  }
  return stand_ins;
}

StandIns StandIns::copies_of_buffers(const Stage& stage) {
  StandIns stand_ins;
  for (const auto& [name, buffer] : stage.buffers()) {
    if (buffer.defined()) stand_ins.replace(buffer, buffer.detach().clone());
  }
  return stand_ins;
}

StandIns StandIns::of_buffers(const Stage& stage, const std::vector<std::size_t>& which,
                              const std::vector<at::Tensor>& values) {
  StandIns stand_ins;
  for (std::size_t i = 0; i < which.size(); ++i) stand_ins.replace(stage.buffers()[which[i]].second, values[i]);
  return stand_ins;
}

StandIns::~StandIns() {
  // In reverse: a tensor that is listed twice gets back its original data.
  for (auto replaced = replaced_.rbegin(); replaced != replaced_.rend(); ++replaced) {
    become(replaced->tensor, replaced->data);
  }
}

Value on_meta(const Value& value) {
  return value.map_tensors([](const at::Tensor& tensor) { return tensor.defined() ? meta_like(tensor) : tensor; });
}

Value infer_output(const Stage& stage, const StageCall& call, at::Device device) {
  const at::NoGradGuard no_graph;
  try {
    const StandIns meta = StandIns::on_meta(stage);
    return on_meta(stage.forward(call));
  } catch (const std::exception&) {
    // An operation without a meta kernel, or a real error, which the run below will throw.
  }
  ValueList arguments;
  for (const Value& argument : call.arguments) arguments.push_back(zeros_like(argument, device));
  ValueDict keywords;
  for (const auto& [name, value] : call.keywords) keywords.emplace_back(name, zeros_like(value, device));
  const StandIns buffers = StandIns::copies_of_buffers(stage);
  return on_meta(stage.forward({call.stage, call.microbatch, arguments, keywords}));
}

}  // namespace stagecraft

// Messages of a captured step. They are copied into the memory that a graph reads, and out of the memory that it has
// written, so that others never see that memory.

#include <ATen/ATen.h>

#include "executor.h"
#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

/// The same memory, which it does not keep alive: graphs do.
at::Tensor view_of(const at::Tensor& tensor) {
  return at::for_blob(tensor.mutable_data_ptr(), tensor.sizes())
      .strides(tensor.strides())
      .target_device(tensor.device())
      .options(tensor.options().requires_grad(false))
      .make_tensor();
}

/// The same memory of a tensor that a graph has written. A conjugate or negative that is not computed yet stays one.
at::Tensor lazy_view_of(const at::Tensor& tensor) {
  at::Tensor view = view_of(tensor);
  if (tensor.is_conj()) view = at::_conj(view);
  if (tensor.is_neg()) view = at::_neg_view(view);
  return view;
}

at::Tensor computed_copy(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg() ? tensor.resolve_conj().resolve_neg() : tensor.clone();
}

}  // namespace

/// The message that a graph reads in place of one that arrives.
Message Executor::placeholder(const Tag& tag) {
  const CapturedMessage& known = graphs_->learned(tag);
  CapturedMessage& captured = pieces_->messages.emplace_back(known);
  Message message{{}, known.header, known.form};
  for (std::size_t t = 0; t < known.tensors.size(); ++t) {
    at::Tensor& place = message.tensors.emplace_back();
    if (!known.tensors[t].defined()) continue;
    place = at::empty_like(known.tensors[t], at::TensorOptions().device(world_.device()));
    captured.tensors[t] = view_of(place);
    if (known.needs_gradients[t]) place.set_requires_grad(true);
  }
  return message;
}

/// Brings a message that has arrived to where a graph reads it.
void Executor::fill(const CapturedMessage& captured, const Message& real) {
  const bool is_same_form = captured.form == real.form || (captured.form && real.form && *captured.form == *real.form);
  bool fits = is_same_form && captured.header == real.header && captured.tensors.size() == real.tensors.size();
  for (std::size_t t = 0; t < real.tensors.size() && fits; ++t) {
    const at::Tensor& place = captured.tensors[t];
    const at::Tensor& tensor = real.tensors[t];
    fits = place.defined() == tensor.defined() &&
           (!tensor.defined() || (place.sizes() == tensor.sizes() && place.scalar_type() == tensor.scalar_type()));
    if (fits && tensor.defined()) place.copy_(tensor.detach(), /*non_blocking=*/true);
  }
  if (fits) return;
  const std::string why = to_text(captured.tag) +
                          " has another shape, type or number in it than when the step was captured: what a stage "
                          "returns may depend on the shapes of its inputs alone, or leave out .graph";
  graphs_->stay_eager(why);
  throw InvalidArgument(why);
}

/// Where the graph leaves what a SEND sends.
void Executor::note_sent(const Instruction& instruction) {
  const Message written = message_of(instruction);
  CapturedMessage& captured = pieces_->messages.emplace_back();
  captured.tag = instruction.tag;
  captured.is_sent = true;
  captured.header = written.header;
  captured.form = written.form;
  for (const at::Tensor& tensor : written.tensors) {
    if (tensor.defined() && (tensor.layout() != at::kStrided || tensor.device() != world_.device())) {
      throw InvalidArgument("a message has a tensor that no graph can write: sparse, or of another device");
    }
    captured.tensors.push_back(tensor.defined() ? lazy_view_of(tensor) : tensor);
    captured.needs_gradients.push_back(tensor.defined() && tensor.requires_grad());
  }
}

void Executor::send_copy(const Instruction& instruction, const CapturedMessage& captured) {
  Message message{{}, captured.header, captured.form};
  for (std::size_t t = 0; t < captured.tensors.size(); ++t) {
    at::Tensor copy = captured.tensors[t].defined() ? computed_copy(captured.tensors[t]) : at::Tensor();
    if (captured.needs_gradients[t]) copy.set_requires_grad(true);
    message.tensors.push_back(std::move(copy));
  }
  if (record_) bytes_ = message.bytes();
  world_.transport().send(instruction.peer, instruction.tag, std::move(message));
}

}  // namespace stagecraft

// A forward: inputs in, the stage's callable, outputs on their way to the next stage, losses.

#include <ATen/ops/full_like.h>

#include <sstream>

#include "executor.h"
#include "stagecraft/core/error.h"
#include "stagecraft/stage/packing.h"
#include "stagecraft/stage/random.h"
#include "stagecraft/stage/stand_ins.h"

namespace stagecraft {
namespace {

/// The same data as the beginning of another graph; it keeps in mind whether a gradient is wanted.
at::Tensor as_leaf(const at::Tensor& tensor, bool training) {
  if (!tensor.defined()) return tensor;
  at::Tensor leaf = tensor.detach();
  if (training && tensor.requires_grad()) leaf.set_requires_grad(true);
  return leaf;
}

bool any_needs_gradient(const Value& value) {
  bool needs = false;
  value.for_each_tensor([&](const at::Tensor& tensor) { needs |= tensor.defined() && tensor.requires_grad(); });
  return needs;
}

}  // namespace

void Executor::await_input(std::uint32_t stage, MicrobatchId microbatch) {
  Flight& in = flight(stage, microbatch);
  const Place& place = places_[stage];
  if (in.has_input || place.is_first) return;
  const double begin = record ? seconds_now() : 0;
  const Tag tag{Channel::kForward, place.stage - 1, place.stage, microbatch};
  in.incoming = unpack(world_.transport().receive(place.before, tag, world_.timeout()));
  in.has_input = true;
  if (record) waited_ += seconds_now() - begin;
}

Value Executor::with_leaves_for_given(const Value& value, Flight& in, std::vector<at::Tensor>& leaves) const {
  if (!inputs_->training || !any_needs_gradient(value)) return value;
  return value.map_tensors([&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.requires_grad()) return tensor;
    in.given.push_back(tensor);
    leaves.push_back(as_leaf(tensor, true));
    return leaves.back();
  });
}

/// `leaves` gets what the backward gives gradients to: the tensors of the items that the stage takes, then those of the
/// user's that need a gradient.
ValueList Executor::gather_arguments(std::uint32_t stage, MicrobatchId microbatch, std::vector<at::Tensor>& leaves) {
  Flight& in = flight(stage, microbatch);
  const Place& place = places_[stage];
  ValueList arguments;
  if (place.is_first) {
    for (const Value& argument : inputs_->arguments[microbatch.index()]) {
      arguments.push_back(with_leaves_for_given(argument, in, leaves));
    }
    return arguments;
  }
  const auto& wired = wiring_.arguments(place.stage);
  in.tensors_before.clear();
  for (const Value& item : in.incoming) in.tensors_before.push_back(static_cast<std::uint32_t>(item.count_tensors()));
  in.leaves.assign(in.incoming.size(), -1);
  const auto take = [&](std::size_t item, bool gradient) -> Value {
    if (!gradient) return in.incoming[item].map_tensors([](const at::Tensor& t) { return as_leaf(t, false); });
    if (in.leaves[item] < 0) {
      in.leaves[item] = static_cast<std::int32_t>(leaves.size());
      in.incoming[item].for_each_tensor([&](const at::Tensor& tensor) { leaves.push_back(tensor); });
    }
    if (!stages_[stage].options().copy_inputs) return in.incoming[item];
    return in.incoming[item].map_tensors([](const at::Tensor& t) { return t.defined() ? t.clone() : t; });
  };
  if (!wired.empty()) {
    for (const auto& argument : wired)
      arguments.push_back(take(static_cast<std::size_t>(argument.item), argument.gradient));
    return arguments;
  }
  // All that the stage before returned is one item, the list of the arguments.
  const auto& items = wiring_.after(place.stage - 1);
  const auto all = std::find(items.begin(), items.end(), Wiring::Item{place.stage.value - 1, Wiring::kAll});
  return take(static_cast<std::size_t>(all - items.begin()), true).list();
}

/// Puts what crosses the next boundary into the flight, and returns the tensors that gradients will come back for.
std::vector<at::Tensor> Executor::hand_on(std::uint32_t stage, Flight& in, const Value& output) {
  const Place& place = places_[stage];
  const bool training = inputs_->training;
  const auto leaf = [&](const at::Tensor& tensor) { return as_leaf(tensor, training); };
  std::vector<at::Tensor> roots;
  if (place.is_last) return roots;
  const ValueList results = as_arguments(output);
  const auto& items = wiring_.after(place.stage);
  const auto& relayed = wiring_.relayed(place.stage);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (relayed[i] >= 0) {
      in.outgoing.push_back(in.incoming[static_cast<std::size_t>(relayed[i])].map_tensors(leaf));
      continue;
    }
    const int wanted = items[i].output;
    if (wanted != Wiring::kAll && static_cast<std::size_t>(wanted) >= results.size()) {
      throw InvalidArgument("stage " + std::to_string(place.stage.value) + " returned " +
                            std::to_string(results.size()) + " outputs, but an edge takes output " +
                            std::to_string(wanted) + ": return it, or change the edge");
    }
    const Value made = wanted == Wiring::kAll ? Value(results) : results[static_cast<std::size_t>(wanted)];
    if (training) made.for_each_tensor([&](const at::Tensor& tensor) { roots.push_back(tensor); });
    in.outgoing.push_back(made.map_tensors(leaf));
  }
  return roots;
}

at::Tensor Executor::checked_loss(const at::Tensor& loss, StageId stage, const char* what) const {
  if (!loss.defined() || loss.numel() != 1) {
    std::ostringstream got;
    if (loss.defined()) {
      got << "shape " << loss.sizes();
    } else {
      got << "nothing";
    }
    throw InvalidArgument(std::string("the ") + what + " of stage " + std::to_string(stage.value) +
                          " must be one number, got " + got.str() + ": reduce it with mean() or sum()");
  }
  return loss;
}

at::Tensor Executor::seed_for(const at::Tensor& loss, double weight) {
  const bool same = last_seed_.defined() && last_weight_ == weight && last_seed_.sizes() == loss.sizes() &&
                    last_seed_.scalar_type() == loss.scalar_type() && last_seed_.device() == loss.device();
  if (!same) {
    last_seed_ = at::full_like(loss.detach(), weight);
    last_weight_ = weight;
  }
  return last_seed_;
}

void Executor::add_losses(std::uint32_t stage, MicrobatchId microbatch, const Value& output,
                          std::vector<at::Tensor>& roots) {
  const Place& place = places_[stage];
  Flight& in = flight(stage, microbatch);
  const double weight = inputs_->weights[microbatch.index()] * inputs_->replica_weight;
  const auto add_root = [&](const at::Tensor& loss) {
    if (!inputs_->training) return;
    roots.push_back(loss);
    in.seeds.push_back(seed_for(loss, weight));
  };
  if (place.is_last && options_.loss && !inputs_->targets.empty()) {
    const at::Tensor loss = checked_loss(
        options_.loss(output, inputs_->targets[microbatch.index()], *inputs_->loss_keywords), place.stage, "loss");
    outputs_.losses[microbatch.index()] = loss.detach();
    add_root(loss);
  }
  if (stages_[stage].options().auxiliary_loss && inputs_->training) {
    add_root(checked_loss(stages_[stage].options().auxiliary_loss(output), place.stage, "auxiliary loss"));
  }
}

void Executor::forward(const Instruction& instruction) {
  await_input(instruction.stage, instruction.microbatch);
  Flight& in = flight(instruction.stage, instruction.microbatch);
  const Place& place = places_[instruction.stage];
  std::vector<at::Tensor> leaves;
  const ValueList arguments = gather_arguments(instruction.stage, instruction.microbatch, leaves);
  ValueDict keywords;
  for (const auto& [name, value] : inputs_->keywords[instruction.microbatch.index()]) {
    keywords.emplace_back(name, with_leaves_for_given(value, in, leaves));
  }
  const StageOptions& options = stages_[instruction.stage].options();
  if (!options.inputs.empty()) {
    check_tensors(arguments, options.inputs, place.stage, instruction.microbatch, "input");
  }
  Value output;
  {
    const RandomScope random(options_.seed, place.stage, instruction.microbatch + inputs_->first_microbatch,
                             inputs_->number);
    const Stage& stage = stages_[instruction.stage];
    const StageCall call{place.stage, instruction.microbatch, arguments, keywords};
    output = inputs_->only_shapes ? infer_output(stage, call, world_.device()) : stage.forward(call);
  }
  if (!options.outputs.empty()) {
    check_tensors(as_arguments(output), options.outputs, place.stage, instruction.microbatch, "output");
  }
  if (inputs_->only_shapes) {
    StageShapes& shapes = outputs_.shapes.emplace_back(StageShapes{place.stage, instruction.microbatch, {}});
    output.for_each_tensor([&](const at::Tensor& tensor) {
      if (tensor.defined()) shapes.outputs.push_back(TensorSpec::of(tensor));
    });
  }
  std::vector<at::Tensor> roots = hand_on(instruction.stage, in, output);
  add_losses(instruction.stage, instruction.microbatch, output, roots);
  if (place.is_last && inputs_->keep_outputs) {
    outputs_.outputs[instruction.microbatch.index()] =
        output.map_tensors([](const at::Tensor& tensor) { return tensor.detach(); });
  }
  if (inputs_->training) in.backward = Backward(roots, leaves);
  in.incoming.clear();
  in.has_input = false;
  if (instruction.next != Instruction::kNobody) {
    Flight& next = flight(instruction.next, instruction.microbatch);
    next.incoming = std::move(in.outgoing);
    next.has_input = true;
    in.outgoing.clear();
  }
}

}  // namespace stagecraft

// The backward of a stage: takes gradients from the stage after it, and passes gradients to the stage before it.

#include <ATen/ATen.h>

#include "executor.h"
#include "stagecraft/stage/packing.h"

namespace stagecraft {

void Executor::await_gradient(const Instruction& instruction) {
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  if (in.has_gradient || places_[instruction.stage].is_last) return;
  for (const Value& item : unpack(receive(instruction, "gradient"))) {
    auto& gradients = in.gradients_in.emplace_back();
    item.for_each_tensor([&](const at::Tensor& tensor) { gradients.push_back(tensor); });
  }
  in.has_gradient = true;
}

/// `gradients` are those of the leaves, in their order.
void Executor::pass_gradients_back(std::uint32_t stage, Flight& in, std::vector<at::Tensor>& gradients) {
  const Place& place = places_[stage];
  for (std::size_t i = 0; i < in.given.size(); ++i) {
    at::Tensor& gradient = gradients[gradients.size() - in.given.size() + i];
    if (!gradient.defined()) continue;
    outputs_.given.push_back(in.given[i]);
    outputs_.given_gradients.push_back(std::move(gradient));
  }
  if (place.is_first) return;
  const auto& relayed = wiring_.relayed(place.stage);
  in.gradients_out.assign(in.tensors_before.size(), {});
  for (std::size_t item = 0; item < in.tensors_before.size(); ++item) {
    auto& back = in.gradients_out[item];
    back.resize(in.tensors_before[item]);
    if (in.leaves[item] >= 0) {
      for (std::size_t k = 0; k < back.size(); ++k) {
        back[k] = std::move(gradients[static_cast<std::size_t>(in.leaves[item]) + k]);
      }
    }
    if (in.leaves[item] >= 0) continue;
    // A value that was only relayed to later stages gets the gradient that came back from them.
    for (std::size_t after = 0; after < relayed.size(); ++after) {
      if (relayed[after] != static_cast<int>(item) || after >= in.gradients_in.size()) continue;
      for (std::size_t k = 0; k < back.size(); ++k) back[k] = std::move(in.gradients_in[after][k]);
    }
  }
}

void Executor::backward(const Instruction& instruction) {
  await_gradient(instruction);
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  Place& place = places_[instruction.stage];
  const StageOptions& options = stages_[instruction.stage].options();
  std::vector<at::Tensor> arriving;
  const auto& relayed = wiring_.relayed(place.stage);
  for (std::size_t item = 0; item < in.gradients_in.size(); ++item) {
    if (relayed[item] >= 0 && in.leaves[static_cast<std::size_t>(relayed[item])] < 0) continue;
    arriving.insert(arriving.end(), in.gradients_in[item].begin(), in.gradients_in[item].end());
  }
  arriving.insert(arriving.end(), in.seeds.begin(), in.seeds.end());

  const bool whole = instruction.action.kind() == ActionKind::kBackward;
  const bool at_once = whole || options.full_backward || options.deferred_weights;
  std::vector<at::Tensor> gradients =
      at_once ? in.backward.full(arriving) : in.backward.input_part(arriving, place.planner);
  if (options.deferred_weights) in.weights = options.deferred_weights();
  pass_gradients_back(instruction.stage, in, gradients);
  in.gradients_in.clear();
  in.has_gradient = false;
  in.seeds.clear();
  in.given.clear();
  if (!whole && at_once && !in.weights) in.weights = [] {};  // there is nothing left for the weight part
  if (whole && in.weights) std::exchange(in.weights, nullptr)();
  if (instruction.next != Instruction::kNobody) {
    Flight& next = flight(instruction.next, instruction.action.microbatch());
    next.gradients_in = std::move(in.gradients_out);
    next.has_gradient = true;
    in.gradients_out.clear();
  }
}

void Executor::weight_part(const Instruction& instruction) {
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  if (in.weights) return std::exchange(in.weights, nullptr)();
  in.backward.weight_part();
}

}  // namespace stagecraft

// The backward of a stage: takes gradients from the stage after it, and passes gradients to the stage before it.

#include <ATen/ATen.h>

#include <numeric>
#include <span>

#include "executor.h"
#include "held_memory.h"
#include "stagecraft/core/error.h"

namespace stagecraft {

void Executor::await_gradient(const Instruction& instruction) {
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  if (in.has_gradient || places_[instruction.stage].is_last) return;
  in.gradients_in = receive(instruction, "gradient").tensors;
  const std::size_t expected = std::accumulate(in.tensors_after.begin(), in.tensors_after.end(), std::size_t{0});
  if (in.gradients_in.size() != expected) {
    throw TransportError("a message of gradients has " + std::to_string(in.gradients_in.size()) + " tensors, but " +
                             std::to_string(expected) + " were sent forward: one comes back for each",
                         instruction.peer);
  }
  in.has_gradient = true;
}

namespace {

/// Autograd may leave the gradients of an input and of a parameter in the same memory (x.view(...) + p.view(...)), to
/// which the next microbatch adds: what goes to another stage gets memory of its own. In a split backward, W may get
/// the same tensor (x + p.view(...)), and make a view of it the parameter's gradient.
void part_from_others(std::span<at::Tensor> gradients) {
  for (at::Tensor& one : gradients) {
    if (!one.defined() || !one.has_storage()) continue;
    if (holders_of(one) > 1 || holders_of(one.storage()) > 1) one = one.clone();
  }
}

}  // namespace

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
  const auto total = std::accumulate(in.tensors_before.begin(), in.tensors_before.end(), std::size_t{0});
  in.gradients_out.clear();
  in.gradients_out.reserve(total);
  for (std::size_t item = 0; item < in.tensors_before.size(); ++item) {
    const std::size_t end = in.gradients_out.size() + in.tensors_before[item];
    if (in.leaves[item] >= 0) {
      const auto first = gradients.begin() + in.leaves[item];
      std::move(first, first + in.tensors_before[item], std::back_inserter(in.gradients_out));
      continue;
    }
    // A value that only went on to later stages comes back with their gradients.
    auto first = in.gradients_in.begin();
    for (std::size_t after = 0; after < in.tensors_after.size() && !in.gradients_in.empty(); ++after) {
      if (relayed[after] == static_cast<int>(item)) {
        std::move(first, first + in.tensors_after[after], std::back_inserter(in.gradients_out));
        break;
      }
      first += in.tensors_after[after];
    }
    in.gradients_out.resize(end);  // or it ends here
  }
}

/// From the last segment to the first. Each gives the one before it the gradients of what crossed between them.
std::vector<at::Tensor> Executor::run_backward(const Instruction& instruction, bool at_once) {
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  std::vector<Segment>& segments = places_[instruction.stage].segments;
  for (std::size_t s = segments.size(); s-- > 0;) {
    SegmentFlight& part = in.segments[s];
    if (part.is_dropped) compute_again(instruction, s);
    if (s == 0) arriving_.insert(arriving_.end(), relayed_.begin(), relayed_.end());
    std::vector<at::Tensor> gradients =
        at_once ? part.backward.full(arriving_) : part.backward.input_part(arriving_, segments[s].planner);
    if (s == 0) return gradients;
    arriving_ = std::move(gradients);
  }
  return {};
}

/// Puts the gradients that its outputs and losses get into `arriving_`, and those of items that only pass through into
/// `relayed_`.
void Executor::begin_backward(const Instruction& instruction) {
  await_gradient(instruction);
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  Place& place = places_[instruction.stage];
  // Its losses are needed first.
  if (in.segments.back().is_dropped) compute_again(instruction, in.segments.size() - 1);
  const auto& relayed = wiring_.relayed(place.stage);
  auto first = in.gradients_in.begin();
  arriving_.clear();
  relayed_.clear();
  for (std::size_t item = 0; item < in.tensors_after.size(); ++item) {
    const auto end = first + in.tensors_after[item];
    if (relayed[item] < 0) {
      arriving_.insert(arriving_.end(), first, end);
    } else if (in.leaves[static_cast<std::size_t>(relayed[item])] >= 0) {
      relayed_.insert(relayed_.end(), first, end);
    }
    first = end;
  }
  arriving_.insert(arriving_.end(), in.seeds.begin(), in.seeds.end());
}

std::optional<NoRandom> Executor::no_random_in_backward(std::uint32_t stage) const {
  const std::string& why = stages_[stage].options().no_random_in_backward;
  return why.empty() ? std::optional<NoRandom>() : std::optional<NoRandom>(std::in_place, why.c_str());
}

void Executor::backward(const Instruction& instruction) {
  const auto no_random = no_random_in_backward(instruction.stage);
  begin_backward(instruction);
  const StageOptions& options = stages_[instruction.stage].options();
  const bool whole = instruction.action.kind() == ActionKind::kBackward;
  const bool at_once = whole || options.full_backward || options.deferred_weights;
  std::vector<at::Tensor> gradients = run_backward(instruction, at_once);
  end_backward(instruction, gradients, at_once);
}

/// `gradients` are those of the leaves.
void Executor::end_backward(const Instruction& instruction, std::vector<at::Tensor>& gradients, bool at_once) {
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  const StageOptions& options = stages_[instruction.stage].options();
  const bool whole = instruction.action.kind() == ActionKind::kBackward;
  arriving_.clear();
  relayed_.clear();
  if (options.deferred_weights) in.weights = options.deferred_weights();
  hold(in);
  const std::size_t given = outputs_.given_gradients.size();
  pass_gradients_back(instruction.stage, in, gradients);
  gradients.clear();
  in.incoming.clear();
  in.gradients_in.clear();
  in.has_gradient = false;
  in.seeds.clear();
  in.given.clear();
  std::span<at::Tensor> rest(in.gradients_out);
  for (std::size_t item = 0; item < in.tensors_before.size() && !rest.empty(); ++item) {
    // What only passes through was parted where it was computed, and nothing here computes with it.
    if (in.leaves[item] >= 0) part_from_others(rest.first(in.tensors_before[item]));
    rest = rest.subspan(in.tensors_before[item]);
  }
  part_from_others(std::span(outputs_.given_gradients).subspan(given));
  if (!whole && at_once && !in.weights) in.weights = [] {};  // there is nothing left for the weight part
  if (whole && in.weights) std::exchange(in.weights, nullptr)();
  if (instruction.next != Instruction::kNobody) {
    Flight& next = flight(instruction.next, instruction.action.microbatch());
    std::swap(next.gradients_in, in.gradients_out);
    next.has_gradient = true;
    in.gradients_out.clear();
  }
}

void Executor::weight_part(const Instruction& instruction) {
  const auto no_random = no_random_in_backward(instruction.stage);
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  if (in.weights) return std::exchange(in.weights, nullptr)();
  for (auto part = in.segments.rbegin(); part != in.segments.rend(); ++part) part->backward.weight_part();
}

}  // namespace stagecraft

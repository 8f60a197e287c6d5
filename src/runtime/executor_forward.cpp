// The forward of a stage: gathers inputs, runs the stage's callable, passes outputs on, computes losses.

#include <algorithm>

#include "compute_types.h"
#include "executor.h"
#include "stagecraft/core/error.h"
#include "stagecraft/stage/random.h"
#include "stagecraft/stage/stand_ins.h"

namespace stagecraft {
namespace {

/// The same data as a leaf of a new graph; in training it requires a gradient if `tensor` does.
at::Tensor as_leaf(const at::Tensor& tensor, bool training) {
  if (!tensor.defined()) return tensor;
  at::Tensor leaf = tensor.detach();
  if (training && tensor.requires_grad()) leaf.set_requires_grad(true);
  return leaf;
}

/// A copy with memory of its own: as much as the tensor has, also where it is expanded.
at::Tensor parted(const at::Tensor& tensor) {
  at::Tensor distinct = tensor.detach();
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) distinct = distinct.narrow(d, 0, 1);
  }
  return distinct.clone().expand_as(tensor).set_requires_grad(tensor.requires_grad());
}

bool any_needs_gradient(const Value& value) {
  bool needs = false;
  value.for_each_tensor([&](const at::Tensor& tensor) { needs |= tensor.defined() && tensor.requires_grad(); });
  return needs;
}

std::int64_t bytes_of(const ValueList& values) {
  std::int64_t bytes = 0;
  for (const Value& value : values) {
    value.for_each_tensor([&](const at::Tensor& tensor) {
      if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
    });
  }
  return bytes;
}

void list_tensors(const ValueList& values, std::vector<at::Tensor>& tensors) {
  tensors.clear();
  for (const Value& value : values) value.for_each_tensor([&](const at::Tensor& tensor) { tensors.push_back(tensor); });
}

}  // namespace

void Executor::await_input(const Instruction& instruction) {
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  if (in.has_input || places_[instruction.stage].is_first) return;
  in.incoming.clear();
  unpack(receive(instruction, "input"), in.incoming);
  in.rows = in.incoming.back().integer();
  in.incoming.pop_back();
  in.has_input = true;
}

Value Executor::with_leaves_for_given(const Value& value, Flight& in) {
  if (!inputs_->training() || !any_needs_gradient(value)) return value;
  return value.map_tensors([&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.requires_grad()) return tensor;
    in.given.push_back(tensor);
    leaves_.push_back(as_leaf(tensor, true));
    return leaves_.back();
  });
}

/// A value of the user's, in the types that the modules take.
Value Executor::as_taken(const Value& given, bool copies) const {
  if (options_.precision.compute) {
    const Value converted = for_modules(given, *options_.precision.compute);
    return copies ? copy_of(converted) : converted;
  }
  return copies ? copy_of(given) : given;
}

/// `leaves_` gets the tensors of the items that the stage takes, then those of the user's that need a gradient.
ValueList Executor::gather_arguments(std::uint32_t stage, MicrobatchId microbatch) {
  Flight& in = flight(stage, microbatch);
  const Place& place = places_[stage];
  ValueList arguments;
  const bool copies = stages_[stage].options().copy_inputs;
  if (place.is_first) {
    if (!inputs_->rows.empty()) in.rows = inputs_->rows[microbatch.index()];
    for (const Value& argument : inputs_->arguments[microbatch.index()]) {
      const Value given = with_leaves_for_given(argument, in);
      arguments.push_back(as_taken(given, copies));
    }
    return arguments;
  }
  const auto& wired = wiring_.arguments(place.stage);
  in.tensors_before.clear();
  for (const Value& item : in.incoming) in.tensors_before.push_back(static_cast<std::uint32_t>(item.count_tensors()));
  in.leaves.assign(in.incoming.size(), -1);
  const auto make_leaf = [&](std::size_t item) {
    if (in.leaves[item] >= 0) return;
    in.leaves[item] = static_cast<std::int32_t>(leaves_.size());
    in.incoming[item].for_each_tensor([&](const at::Tensor& tensor) { leaves_.push_back(tensor); });
  };
  for (const auto& argument : wired) {
    const auto item = static_cast<std::size_t>(argument.item);
    if (argument.gradient) make_leaf(item);
    const Value taken = argument.gradient
                            ? in.incoming[item]
                            : in.incoming[item].map_tensors([](const at::Tensor& t) { return as_leaf(t, false); });
    arguments.push_back(copies ? copy_of(taken) : taken);
  }
  if (!wired.empty()) return arguments;
  // All that the stage before returned is one item, the list of the arguments. It goes no further than this stage.
  const auto& items = wiring_.after(place.stage - 1);
  const auto all = std::find(items.begin(), items.end(), Wiring::Item{place.stage.value - 1, Wiring::kAll});
  const auto item = static_cast<std::size_t>(all - items.begin());
  make_leaf(item);
  if (copies) return as_arguments(copy_of(in.incoming[item]));
  return as_arguments(place.keeps_inputs || has_sides_ ? in.incoming[item] : std::move(in.incoming[item]));
}

ValueDict Executor::gather_keywords(std::uint32_t stage, MicrobatchId microbatch) {
  ValueDict keywords;
  const bool copies = stages_[stage].options().copy_inputs;
  for (const auto& [name, value] : inputs_->keywords[microbatch.index()]) {
    const Value given = with_leaves_for_given(value, flight(stage, microbatch));
    keywords.emplace_back(name, as_taken(given, copies));
  }
  return keywords;
}

RandomScope Executor::random_numbers(std::uint32_t stage, MicrobatchId microbatch) const {
  return RandomScope(options_.seed, places_[stage].stage, microbatch + inputs_->first_microbatch, inputs_->number);
}

/// Whether it is, or shares memory with, what may change before the next stage, or the caller, has read it: a buffer,
/// which the next microbatch may update, or a parameter, which the caller may after an evaluation.
bool Executor::changes_later(std::uint32_t stage, const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const auto is_any_of = [&](const auto& own) {
    return std::any_of(own.begin(), own.end(), [&](const auto& named) {
      return named.second.defined() && named.second.has_storage() && tensor.is_alias_of(named.second);
    });
  };
  return is_any_of(stages_[stage].buffers()) || (!inputs_->training() && is_any_of(stages_[stage].parameters()));
}

/// Puts what crosses the next boundary into the flight, and the outputs that gradients will come back for into
/// `roots_`.
void Executor::hand_on(std::uint32_t stage, Flight& in, const Value& output) {
  const Place& place = places_[stage];
  const bool training = inputs_->training();
  in.outgoing.clear();
  in.tensors_after.clear();
  if (place.is_last) return;
  const auto leaf = [&](const at::Tensor& tensor) {
    if (training) roots_.push_back(tensor);
    return as_leaf(changes_later(stage, tensor) ? parted(tensor) : tensor, training);
  };
  const std::size_t outputs = output.is_list() ? output.list().size() : 1;
  const auto& items = wiring_.after(place.stage);
  const auto& relayed = wiring_.relayed(place.stage);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (relayed[i] >= 0) {
      const auto item = static_cast<std::size_t>(relayed[i]);
      in.tensors_after.push_back(in.tensors_before[item]);
      in.outgoing.push_back(
          in.incoming[item].map_tensors([&](const at::Tensor& tensor) { return as_leaf(tensor, training); }));
      continue;
    }
    const int wanted = items[i].output;
    if (wanted != Wiring::kAll && static_cast<std::size_t>(wanted) >= outputs) {
      throw InvalidArgument("stage " + std::to_string(place.stage.value) + " returned " + std::to_string(outputs) +
                            " outputs, but an edge takes output " + std::to_string(wanted) +
                            ": return it, or change the edge");
    }
    if (wanted == Wiring::kAll && !output.is_list()) {
      in.outgoing.emplace_back(as_arguments(output.map_tensors(leaf)));
    } else {
      const bool is_whole = wanted == Wiring::kAll || !output.is_list();
      in.outgoing.push_back((is_whole ? output : output[static_cast<std::size_t>(wanted)]).map_tensors(leaf));
    }
    in.tensors_after.push_back(static_cast<std::uint32_t>(in.outgoing.back().count_tensors()));
  }
}

/// An item that goes on to later stages and is used here too: the gradient that comes back for it is the first of those
/// that its leaf adds up, as on one device, where later uses come first.
void Executor::add_relayed_roots(std::uint32_t stage, const Flight& in) {
  if (places_[stage].is_last) return;
  std::vector<at::Tensor>& roots = places_[stage].segments.size() == 1 ? roots_ : first_roots_;
  for (const int relayed : wiring_.relayed(places_[stage].stage)) {
    if (relayed < 0 || in.leaves[static_cast<std::size_t>(relayed)] < 0) continue;
    const auto item = static_cast<std::size_t>(relayed);
    const auto first = leaves_.begin() + in.leaves[item];
    roots.insert(roots.end(), first, first + in.tensors_before[item]);
  }
}

void Executor::check_rows(const Flight& in, MicrobatchId microbatch) const {
  if (in.rows == 0 || inputs_->target_rows.empty()) return;
  const std::int64_t of_target = inputs_->target_rows[microbatch.index()];
  if (of_target == in.rows) return;
  throw InvalidArgument("microbatch " + std::to_string(microbatch.value) + " has " + std::to_string(in.rows) +
                        " rows of input, but " + std::to_string(of_target) +
                        " of target: give step as many rows of each, or set how they are cut (Split::into)");
}

void Executor::add_losses(std::uint32_t stage, MicrobatchId microbatch, const Value& output) {
  const Place& place = places_[stage];
  Flight& in = flight(stage, microbatch);
  if (place.is_last && losses_.has_losses()) {
    check_rows(in, microbatch);
    losses_.add_loss(place.stage, microbatch, output, roots_, in.seeds);
  }
  const auto& auxiliary = stages_[stage].options().auxiliary_loss;
  if (!auxiliary || !inputs_->training()) return;
  losses_.add_auxiliary_loss(place.stage, microbatch, auxiliary(output), roots_, in.seeds);
}

/// Runs the segments of a training forward. Afterwards `roots_` is empty, `inner_leaves_` are the leaves of the last
/// segment if there are several, and `first_roots_` the outputs of the first.
Value Executor::run_forward(const Instruction& instruction, const StageCall& call) {
  const Stage& stage = stages_[instruction.stage];
  std::vector<Segment>& segments = places_[instruction.stage].segments;
  Flight& in = flight(instruction.stage, call.microbatch);
  use_accumulators(instruction.stage, in);
  RandomScope random = random_numbers(instruction.stage, call.microbatch);
  Value value;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    static const ValueDict no_keywords;
    SegmentFlight& part = in.segments[s];
    part.input = s == 0 ? ValueList() : as_arguments(std::move(value));
    const StageCall own{call.stage, call.microbatch, s == 0 ? call.arguments : part.input,
                        s == 0 ? call.keywords : no_keywords, call.any_float};
    const bool is_last = s + 1 == segments.size();
    const bool drop = segments[s].again && !(is_last && instruction.returns_at_once);
    value = partner_ ? run_with_partner(instruction, own) : run_first(segments[s], stage, own, drop, random, part);
    if (s > 0) {
      list_tensors(part.input, inner_leaves_);
      if (!part.is_dropped) part.input.clear();
    }
    if (is_last) break;
    value = value.map_tensors([&](const at::Tensor& tensor) {
      (s == 0 ? first_roots_ : roots_).push_back(tensor);
      return as_leaf(tensor, true);
    });
    if (s > 0 && !part.is_dropped) part.backward.reset(roots_, inner_leaves_);
    roots_.clear();
  }
  return value;
}

/// Makes the graph of a segment that was dropped.
void Executor::compute_again(const Instruction& instruction, std::size_t segment) {
  const MicrobatchId microbatch = instruction.action.microbatch();
  Flight& in = flight(instruction.stage, microbatch);
  Place& place = places_[instruction.stage];
  SegmentFlight& part = in.segments[segment];
  leaves_.clear();
  roots_.clear();
  first_roots_.clear();
  ValueDict keywords;
  if (segment == 0) {
    in.given.clear();
    part.input = gather_arguments(instruction.stage, microbatch);
    keywords = gather_keywords(instruction.stage, microbatch);
  }
  const StageCall call{place.stage, microbatch, part.input, keywords, options_.precision.changes_types()};
  const AutocastScope autocast(options_.precision, world_.device().type());
  Value output;
  use_accumulators(instruction.stage, in);
  {
    RandomScope random = random_numbers(instruction.stage, microbatch);
    output = run_again(place.segments[segment], stages_[instruction.stage], call, random, part);
  }
  if (segment + 1 == place.segments.size()) {
    if (place.is_last && options_.precision.compute) output = for_loss(output, *options_.precision.compute);
    hand_on(instruction.stage, in, output);
    in.outgoing.clear();
    add_losses(instruction.stage, microbatch, output);
  } else {
    output.for_each_tensor([&](const at::Tensor& tensor) { roots_.push_back(tensor); });
  }
  if (segment == 0) {
    add_relayed_roots(instruction.stage, in);
    roots_.insert(roots_.end(), first_roots_.begin(), first_roots_.end());
    part.backward.reset(roots_, leaves_);
  } else {
    list_tensors(part.input, inner_leaves_);
    part.backward.reset(roots_, inner_leaves_);
  }
  part.input.clear();
  leaves_.clear();
  inner_leaves_.clear();
  roots_.clear();
  first_roots_.clear();
}

void Executor::forward(const Instruction& instruction) {
  await_input(instruction);
  const MicrobatchId microbatch = instruction.action.microbatch();
  Flight& in = flight(instruction.stage, microbatch);
  const Place& place = places_[instruction.stage];
  const StageOptions& options = stages_[instruction.stage].options();
  const bool any_float = options_.precision.changes_types();
  const AutocastScope autocast(options_.precision, world_.device().type());
  leaves_.clear();
  roots_.clear();
  first_roots_.clear();
  in.given.clear();
  const ValueList arguments = gather_arguments(instruction.stage, microbatch);
  const ValueDict keywords = gather_keywords(instruction.stage, microbatch);
  if (!options.inputs.empty()) {
    check_tensors(arguments, options.inputs, place.stage, microbatch, "input", any_float);
  }
  const StageCall call{place.stage, microbatch, arguments, keywords, any_float};
  Value output;
  if (inputs_->training()) {
    output = run_forward(instruction, call);
  } else {
    const RandomScope random = random_numbers(instruction.stage, microbatch);
    const Stage& stage = stages_[instruction.stage];
    output = inputs_->only_shapes() ? infer_output(stage, call, world_.device()) : stage.forward(call);
  }
  if (!options.outputs.empty()) {
    check_tensors(as_arguments(output), options.outputs, place.stage, microbatch, "output", any_float);
  }
  if (place.is_last && options_.precision.compute) output = for_loss(output, *options_.precision.compute);
  if (inputs_->only_shapes()) {
    StageShapes& shapes = outputs_.shapes.emplace_back(StageShapes{place.stage, microbatch, {}});
    output.for_each_tensor([&](const at::Tensor& tensor) {
      if (tensor.defined()) shapes.outputs.push_back(TensorSpec::of(tensor));
    });
  }
  hand_on(instruction.stage, in, output);
  add_losses(instruction.stage, microbatch, output);
  if (place.is_last && inputs_->keep_outputs) {
    // A graph's own copy: the stage may keep what it has returned.
    outputs_.outputs[microbatch.index()] = output.map_tensors([&](const at::Tensor& tensor) {
      const bool parts = is_capturing_ || changes_later(instruction.stage, tensor);
      return parts ? tensor.detach().clone() : tensor.detach();
    });
  }
  if (inputs_->training()) {
    add_relayed_roots(instruction.stage, in);
    SegmentFlight& first = in.segments.front();
    SegmentFlight& last = in.segments.back();
    if (last.is_dropped) {
      in.seeds.clear();
    } else {
      last.backward.reset(roots_, in.segments.size() == 1 ? leaves_ : inner_leaves_);
    }
    if (in.segments.size() > 1 && !first.is_dropped) first.backward.reset(first_roots_, leaves_);
  }
  leaves_.clear();
  inner_leaves_.clear();
  roots_.clear();
  first_roots_.clear();
  if (!inputs_->training() || !(place.keeps_inputs || has_sides_)) in.incoming.clear();
  in.has_input = false;
  if (instruction.next != Instruction::kNobody) {
    if (graphs_ && inputs_->training()) most_handed_on_ = std::max(most_handed_on_, bytes_of(in.outgoing));
    Flight& next = flight(instruction.next, microbatch);
    std::swap(next.incoming, in.outgoing);
    next.rows = in.rows;
    next.has_input = true;
    in.outgoing.clear();
  }
}

}  // namespace stagecraft

#include "executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <sstream>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action_text.h"
#include "stagecraft/schedule/table.h"
#include "stagecraft/stage/packing.h"
#include "stagecraft/stage/random.h"
#include "stagecraft/stage/stand_ins.h"

namespace stagecraft {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

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

void add_to(at::Tensor& sum, at::Tensor more) {
  if (!more.defined()) return;
  sum = sum.defined() ? sum + more : std::move(more);
}

std::int64_t bytes_of(const Message& message) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : message.tensors) {
    if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace

Executor::Executor(World& world, const std::vector<Stage>& stages, const PipelineOptions& options,
                   const Schedule& schedule, const Wiring& wiring)
    : world_(world),
      stages_(stages),
      options_(options),
      wiring_(wiring),
      microbatches_(static_cast<std::size_t>(schedule.microbatches)),
      flights_(stages.size() * microbatches_) {
  for (const Stage& stage : stages) {
    Place& place = places_.emplace_back();
    place.stage = stage.index();
    place.is_first = place.stage.value == 0;
    place.is_last = place.stage.value + 1 == schedule.stages();
    if (!place.is_first) place.before = schedule.placement.rank_of(place.stage - 1);
    if (!place.is_last) place.after = schedule.placement.rank_of(place.stage + 1);
  }
}

void Executor::clear() {
  if (main_stream_) c10::impl::VirtualGuardImpl(main_stream_->device_type()).exchangeStream(*main_stream_);
  main_stream_.reset();
  for (Flight& in : flights_) in = Flight();
  outputs_ = StepOutputs();
  inputs_ = nullptr;
}

StepOutputs Executor::run(const Program& program, const Schedule& schedule, const StepInputs& inputs) {
  inputs_ = &inputs;
  outputs_ = StepOutputs();
  outputs_.losses.resize(microbatches_);
  outputs_.outputs.resize(microbatches_);
  timeline.clear();
  const at::AutoGradMode mode(inputs.training);
  const Row& row = schedule.rows[world_.rank().index()];
  for (std::size_t i = 0; i < program.size(); ++i) {
    const Action& action = row[program[i].step];
    try {
      if (action.is_overlap()) {
        execute_overlap(program[i], program[i + 1], action);
        ++i;
      } else {
        execute(program[i], action);
      }
    } catch (const AbortedError&) {
      throw;
    } catch (const c10::Error& error) {
      fail(schedule, error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail(schedule, error.what());
    }
  }
  inputs_ = nullptr;
  return std::move(outputs_);
}

// The halves of an overlap are in flight together: the first is issued to a stream beside the rank's own, the second to
// the rank's own, which then waits for the other. On a CPU they run one after the other.
void Executor::execute_overlap(const Instruction& first, const Instruction& second, const Action& overlap) {
  const std::function<void()> both = [&] {
    begin_overlap();
    execute(first, overlap.first());
    if (main_stream_) c10::impl::VirtualGuardImpl(main_stream_->device_type()).exchangeStream(*main_stream_);
    execute(second, overlap.second());
    end_overlap();
  };
  const auto& handler = handlers[static_cast<std::size_t>(ActionKind::kOverlap)];
  if (!handler) return both();
  current_ = &first;
  handler(ActionContext(stages_[first.stage], overlap, both));
}

void Executor::begin_overlap() {
  const at::Device device = world_.device();
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (!overlap_stream_) overlap_stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  main_stream_ = guard.getStream(device);
  c10::Event before(device.type());
  before.record(*main_stream_);
  before.block(*overlap_stream_);
  guard.exchangeStream(*overlap_stream_);
}

void Executor::end_overlap() {
  if (!main_stream_) return;
  c10::Event done(main_stream_->device_type());
  done.record(*overlap_stream_);
  done.block(*main_stream_);
  main_stream_.reset();
}

void Executor::execute(const Instruction& instruction, const Action& action) {
  current_ = &instruction;
  // A name is made only when a profiler listens.
  at::RecordFunction range(at::RecordScope::USER_SCOPE);
  if (range.isActive()) range.before(to_text(action));
  const double start = record ? now() : 0;
  waited_ = 0;
  bytes_ = 0;
  const auto& handler = handlers[static_cast<std::size_t>(instruction.kind)];
  if (handler) {
    const std::function<void()> run = [&] { perform(instruction); };
    handler(ActionContext(stages_[instruction.stage], action, run));
  } else {
    perform(instruction);
  }
  if (record) timeline.push_back({action, start, now(), waited_, bytes_});
}

void Executor::perform(const Instruction& instruction) {
  switch (instruction.kind) {
    case ActionKind::kForward:
      return forward(instruction);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return backward(instruction);
    case ActionKind::kBackwardWeight:
      return weight_part(instruction);
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
      return send(instruction);
    case ActionKind::kRecvForward:
      return world_.transport().post_receive(
          instruction.peer, {Channel::kForward, places_[instruction.stage].stage - 1, places_[instruction.stage].stage,
                             instruction.microbatch});
    case ActionKind::kRecvBackward:
      return world_.transport().post_receive(
          instruction.peer, {Channel::kBackward, places_[instruction.stage].stage + 1, places_[instruction.stage].stage,
                             instruction.microbatch});
    default:
      return;  // UNSHARD, RESHARD and REDUCE_GRAD have nothing to do where parameters are whole and single
  }
}

// --- forward ---

void Executor::await_input(std::uint32_t stage, MicrobatchId microbatch) {
  Flight& in = flight(stage, microbatch);
  const Place& place = places_[stage];
  if (in.has_input || place.is_first) return;
  const double begin = record ? now() : 0;
  const Tag tag{Channel::kForward, place.stage - 1, place.stage, microbatch};
  in.incoming = unpack(world_.transport().receive(place.before, tag, world_.timeout()));
  in.has_input = true;
  if (record) waited_ += now() - begin;
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
  const double weight = inputs_->weights[microbatch.index()];
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
    const RandomScope random(options_.seed, place.stage, instruction.microbatch, inputs_->number);
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

// --- backward ---

void Executor::await_gradient(std::uint32_t stage, MicrobatchId microbatch) {
  Flight& in = flight(stage, microbatch);
  const Place& place = places_[stage];
  if (in.has_gradient || place.is_last) return;
  const double begin = record ? now() : 0;
  const Tag tag{Channel::kBackward, place.stage + 1, place.stage, microbatch};
  for (const Value& item : unpack(world_.transport().receive(place.after, tag, world_.timeout()))) {
    auto& gradients = in.gradients_in.emplace_back();
    item.for_each_tensor([&](const at::Tensor& tensor) { gradients.push_back(tensor); });
  }
  in.has_gradient = true;
  if (record) waited_ += now() - begin;
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
    // A value that went on to later stages comes back with their gradients.
    for (std::size_t after = 0; after < relayed.size(); ++after) {
      if (relayed[after] != static_cast<int>(item) || after >= in.gradients_in.size()) continue;
      for (std::size_t k = 0; k < back.size(); ++k) add_to(back[k], in.gradients_in[after][k]);
    }
  }
}

void Executor::backward(const Instruction& instruction) {
  await_gradient(instruction.stage, instruction.microbatch);
  Flight& in = flight(instruction.stage, instruction.microbatch);
  Place& place = places_[instruction.stage];
  const StageOptions& options = stages_[instruction.stage].options();
  std::vector<at::Tensor> arriving;
  const auto& relayed = wiring_.relayed(place.stage);
  for (std::size_t item = 0; item < in.gradients_in.size(); ++item) {
    if (relayed[item] >= 0) continue;
    arriving.insert(arriving.end(), in.gradients_in[item].begin(), in.gradients_in[item].end());
  }
  arriving.insert(arriving.end(), in.seeds.begin(), in.seeds.end());

  const bool whole = instruction.kind == ActionKind::kBackward;
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
    Flight& next = flight(instruction.next, instruction.microbatch);
    next.gradients_in = std::move(in.gradients_out);
    next.has_gradient = true;
    in.gradients_out.clear();
  }
}

void Executor::weight_part(const Instruction& instruction) {
  Flight& in = flight(instruction.stage, instruction.microbatch);
  if (in.weights) return std::exchange(in.weights, nullptr)();
  in.backward.weight_part();
}

// --- messages ---

void Executor::send(const Instruction& instruction) {
  Flight& in = flight(instruction.stage, instruction.microbatch);
  const StageId stage = places_[instruction.stage].stage;
  const bool forward = instruction.kind == ActionKind::kSendForward;
  ValueList values;
  if (forward) {
    values = std::move(in.outgoing);
    in.outgoing.clear();
  } else {
    for (const auto& gradients : in.gradients_out) values.emplace_back(ValueList(gradients.begin(), gradients.end()));
    in.gradients_out.clear();
  }
  Message message = pack(values);
  if (record) bytes_ = bytes_of(message);
  const Tag tag{forward ? Channel::kForward : Channel::kBackward, stage, forward ? stage + 1 : stage - 1,
                instruction.microbatch};
  world_.transport().send(instruction.peer, tag, std::move(message));
}

// --- failure ---

void Executor::fail(const Schedule& schedule, const std::string& why) const {
  const Instruction& instruction = *current_;
  const Action& action = schedule.rows[world_.rank().index()][instruction.step];
  constexpr int kAround = 3;
  const int rank = world_.rank().value;
  const int step = static_cast<int>(instruction.step);
  std::ostringstream text;
  text << "rank " << rank << ", step " << step << ", action " << to_text(action) << " (stage "
       << places_[instruction.stage].stage.value;
  if (has_microbatch(instruction.kind)) text << ", microbatch " << instruction.microbatch.value;
  text << "): " << why << "\n";
  write_table(text, schedule.rows,
              {.first_step = std::max(0, step - kAround),
               .end_step = step + kAround + 1,
               .first_rank = std::max(0, rank - 2),
               .end_rank = rank + 3,
               .mark = TableMark{world_.rank(), step}});
  throw StepError(text.str(), world_.rank(), to_text(action));
}

}  // namespace stagecraft

#include "executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <exception>
#include <sstream>

#include "capture_memory.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/table.h"
#include "stagecraft/transport/streams.h"
#include "use_watch.h"

namespace stagecraft {
namespace {

/// Adds a remedy to LibTorch's error for a stage that changes its input in place.
std::string with_remedy(std::string text) {
  if (text.find("a leaf Variable that requires grad is being used in an in-place operation") != std::string::npos ||
      text.find("a view of a leaf Variable that requires grad is being used in an in-place operation") !=
          std::string::npos) {
    text += "\nIf it is an input of the stage: set copy_inputs in its StageOptions, or do not change it in place";
  }
  return text;
}

}  // namespace

Executor::Executor(World& world, const std::vector<Stage>& stages, const PipelineOptions& options, const Wiring& wiring,
                   int microbatches, ParameterStore& parameters, LossPolicy& losses)
    : world_(world),
      stages_(stages),
      options_(options),
      wiring_(wiring),
      microbatches_(static_cast<std::size_t>(microbatches)),
      parameters_(parameters),
      losses_(losses) {
  for (const Stage& stage : stages) {
    Place& place = places_.emplace_back();
    place.stage = stage.index();
    place.is_first = place.stage.value == 0;
    place.is_last = place.stage.value + 1 == wiring.stages();
    place.segments = segments_of(stage, stage.options().recompute.value_or(options.recompute));
    place.keeps_inputs =
        std::any_of(place.segments.begin(), place.segments.end(), [](const Segment& s) { return s.again; });
  }
  empty_flights();
  if (has_streams(world.device())) times_.emplace(world.device());
  if (!options.graph.is_on()) return;
  graphs_.emplace(world.device(), options, stages, parameters, losses);
  if (!graphs_->can_capture()) graphs_.reset();
}

void Executor::empty_flights() {
  flights_.clear();
  flights_.resize(stages_.size() * microbatches_);
  for (std::size_t i = 0; i < flights_.size(); ++i) {
    flights_[i].segments.resize(places_[i / microbatches_].segments.size());
  }
}

void Executor::drop_flights() {
  empty_flights();
  release_held();
  partner_ = nullptr;
  for (auto* tensors : {&leaves_, &inner_leaves_, &roots_, &first_roots_, &arriving_, &relayed_}) tensors->clear();
}

void Executor::clear() {
  parameters_.cancel();
  if (graphs_) graphs_->abandon();
  losses_.clear();
  drop_flights();
  is_capturing_ = false;
  pieces_ = nullptr;
  outputs_ = StepOutputs();
  ends_.clear();
  program_ = nullptr;
  inputs_ = nullptr;
  world_.activity().set(std::nullopt);
}

StepOutputs Executor::run(const Program& program, const StepInputs& inputs) {
  program_ = &program;
  inputs_ = &inputs;
  outputs_ = StepOutputs();
  outputs_.outputs.resize(microbatches_);
  timeline_.clear();
  if (program.has_messages && has_streams(world_.device())) wait_for_earlier_steps();
  const at::AutoGradMode mode(inputs.training());
  if (inputs.training()) {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      stagecraft::begin_step(places_[stage].segments, stages_[stage]);
    }
  }
  begin_sides();
  parameters_.begin_step(inputs.update);
  if (!run_as_graph(inputs)) {
    if (records_events()) begin_times();
    const std::unique_ptr<CaptureMemory> memory = graphs_ ? graphs_->watch_eager(inputs) : nullptr;
    std::optional<UseWatch> watch;
    if (graphs_ && !graphs_->uncomputed().empty()) watch.emplace(graphs_->uncomputed());
    try {
      run_instructions(0, program.instructions.size());
      if (watch && !watch->found().empty()) {
        graphs_->stay_eager("a module uses a tensor that it has made during a capture that failed");
        throw InvalidArgument(world_.name() + ": " + watch->found() +
                              " takes a tensor that a module has made while a step was captured, and kept. The capture "
                              "has failed, so its values were never computed: let the module change the tensor in "
                              "place, give the stage StageOptions::remember, or leave out PipelineOptions::graph");
      }
    } catch (...) {
      if (graphs_) graphs_->forgive();
      throw;
    }
    if (graphs_) graphs_->end_eager(memory.get());
  }
  if (records_events()) timeline_ = times_->end();
  parameters_.end_step(program.never_reduced);
  if (inputs.training() && record_) {
    for (const BesideRecord& done : parameters_.records()) {
      const bool reduces = done.kind == BesideRecord::Kind::kReduction;
      const Action action =
          Action::of_stage(reduces ? ActionKind::kReduceGrad : ActionKind::kUnshard, places_[done.stage].stage);
      timeline_.push_back({action, done.start, done.end, done.waited, done.bytes, /*beside=*/true});
    }
  }
  if (program.has_messages && has_streams(world_.device())) {
    ends_.emplace_back(world_.device().type()).record(current_stream(world_.device()));
  }
  program_ = nullptr;
  inputs_ = nullptr;
  world_.activity().set(std::nullopt);
  // A handler that replaces an action may leave data in a flight, which the next step would take for its own.
  const bool is_handled =
      std::any_of(handlers_.begin(), handlers_.end(), [](const auto& handler) { return !!handler; });
  if (is_handled) empty_flights();
  return std::move(outputs_);
}

/// The host may be a step ahead of the device, no more: messages of further steps would pile up, and when they need new
/// memory, or the queue of the device is full, CUDA may wait for operations that wait for other ranks.
void Executor::wait_for_earlier_steps() {
  constexpr std::size_t kMostAhead = 2;
  for (; ends_.size() >= kMostAhead; ends_.pop_front()) ends_.front().synchronize();
}

void Executor::begin_times() {
  times_->begin([&] { return world_.transport().now(); });
}

CapturedSteps Executor::captured() const {
  if (!graphs_) return {};
  CapturedSteps report = graphs_->report();
  report.lanes = lanes_captured_;
  return report;
}

void Executor::named_in_errors(const Instruction& instruction, c10::function_ref<void()> run) {
  current_ = &instruction;
  try {
    run();
  } catch (const StepError&) {
    throw;
  } catch (const AbortedError& error) {
    const Action& slot = program_->schedule->rows[world_.rank().index()][instruction.step];
    throw AbortedError(
        std::string(error.what()) + " (at its step " + std::to_string(instruction.step) + ", " + to_text(slot) + ")",
        error.peer());
  } catch (const c10::Error& error) {
    fail(with_remedy(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    fail(with_remedy(error.what()));
  } catch (...) {
    fail(kUnknownException);
  }
}

void Executor::run_instructions(std::size_t begin, std::size_t end) {
  const std::vector<Instruction>& instructions = program_->instructions;
  const Row& row = program_->schedule->rows[world_.rank().index()];
  for (std::size_t i = begin; i < end; ++i) {
    const Instruction& instruction = instructions[i];
    const Action& slot = row[instruction.step];
    named_in_errors(instruction, [&] {
      if (slot.is_overlap()) {
        execute_overlap(instruction, instructions[++i], slot);
      } else {
        execute_alone(instruction);
      }
    });
  }
}

void Executor::execute(const Instruction& instruction) {
  const Action& action = instruction.action;
  current_ = &instruction;
  world_.activity().set(action);
  // Make a name only when a profiler is active.
  at::RecordFunction range(at::RecordScope::USER_SCOPE);
  if (range.isActive()) range.before(to_text(action));
  const bool by_events = records_events();
  const double start = record_ && !by_events ? world_.transport().now() : 0;
  const auto& handler = handlers_[static_cast<std::size_t>(action.kind())];
  const bool goes_on = !is_compute(action.kind()) && !handler && !has_sides_;  // at most a message is prepared
  if (by_events) goes_on ? times_->go_on() : times_->start();
  waited_ = 0;
  bytes_ = 0;
  if (handler) {
    const std::function<void()> run = [&] { perform(instruction); };
    handler(ActionContext(stages_[instruction.stage], action, run));
  } else {
    perform(instruction);
  }
  if (by_events && goes_on && is_receive(action.kind())) {
    times_->pass(action);
  } else if (by_events) {
    times_->finish(action, bytes_);
  } else if (record_) {
    timeline_.push_back({action, start, world_.transport().now(), waited_, bytes_, /*beside=*/false});
  }
}

/// Returns how many seconds it waited. A capture reads no parameters.
double Executor::require_parameters(std::uint32_t stage) { return is_capturing_ ? 0 : parameters_.require(stage); }

void Executor::perform(const Instruction& instruction) {
  switch (instruction.action.kind()) {
    case ActionKind::kForward:
      waited_ += require_parameters(instruction.stage);
      return forward(instruction);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      waited_ += require_parameters(instruction.stage);
      backward(instruction);
      return parameters_.collect_gradients(instruction.stage);
    case ActionKind::kBackwardWeight:
      waited_ += require_parameters(instruction.stage);
      weight_part(instruction);
      return parameters_.collect_gradients(instruction.stage);
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
      return send(instruction);
    case ActionKind::kRecvForward:
    case ActionKind::kRecvBackward:
      return world_.transport().post_receive(instruction.peer, instruction.tag);
    case ActionKind::kUnshard:
      if (is_capturing_) return;  // see replay_pieces
      return parameters_.unshard(instruction.stage);
    case ActionKind::kReshard:
      if (is_capturing_) return;
      return parameters_.reshard(instruction.stage);
    case ActionKind::kReduceGrad:
      if (is_capturing_) return;
      return parameters_.reduce_gradients(instruction.stage);
    default:
      return;
  }
}

/// What a SEND sends; taken from the flight.
Message Executor::message_of(const Instruction& instruction) {
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  Message message;
  if (instruction.action.kind() == ActionKind::kSendForward) {
    in.outgoing.emplace_back(in.rows);
    message = places_[instruction.stage].packer.pack(in.outgoing);
    in.outgoing.clear();
  } else {
    message.tensors = std::move(in.gradients_out);  // the receiver knows what it has sent, so it needs no form
    in.gradients_out.clear();
  }
  return message;
}

/// Copies what shares memory with the caller's inputs: the caller may change them in place as soon as the step returns,
/// while other ranks still read what they were sent.
void Executor::part_from_inputs(MicrobatchId microbatch, std::vector<at::Tensor>& tensors) const {
  const auto shares_with = [&](const at::Tensor& sent) {
    bool shares = false;
    const auto visit = [&](const at::Tensor& given) {
      shares = shares || (given.defined() && given.has_storage() && sent.is_alias_of(given));
    };
    if (microbatch.index() < inputs_->arguments.size()) {
      for (const Value& value : inputs_->arguments[microbatch.index()]) value.for_each_tensor(visit);
    }
    if (microbatch.index() < inputs_->keywords.size()) {
      for (const auto& [name, value] : inputs_->keywords[microbatch.index()]) value.for_each_tensor(visit);
    }
    return shares;
  };
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage() || !shares_with(tensor)) continue;
    tensor = tensor.detach().clone().set_requires_grad(tensor.requires_grad());
  }
}

void Executor::send(const Instruction& instruction) {
  Message message = message_of(instruction);
  if (instruction.action.kind() == ActionKind::kSendForward) {
    part_from_inputs(instruction.action.microbatch(), message.tensors);
  }
  if (record_) bytes_ = message.bytes();
  world_.transport().send(instruction.peer, instruction.tag, std::move(message));
}

/// Waits for the message that a compute action needs; `what` names it in errors.
Message Executor::receive(const Instruction& instruction, const char* what) {
  if (instruction.peer.value < 0) {
    throw InvalidArgument(std::string("there is no ") + what +
                          " for it: a handler of the action before it, on this rank, did not call run()");
  }
  if (is_capturing_) return placeholder(instruction.tag);
  const double begin = record_ ? world_.transport().now() : 0;
  Message message = world_.transport().receive(instruction.peer, instruction.tag, world_.timeout());
  if (record_) waited_ += world_.transport().now() - begin;
  if (records_events()) times_->received();
  if (has_sides_) {  // what passes through is read on the other side too
    const c10::impl::VirtualGuardImpl guard(world_.device().type());
    for (const at::Tensor& tensor : message.tensors) {
      if (!tensor.defined() || tensor.device() != world_.device() || !tensor.has_storage()) continue;
      for (const c10::Stream& side : {*own_stream_, second_stream_->get()}) {
        guard.recordDataPtrOnStream(tensor.storage().data_ptr(), side);
      }
    }
  }
  if (graphs_ && graphs_->is_learning()) graphs_->learn(instruction.tag, message);
  if (graphs_) graphs_->note_received(message);
  return message;
}

void Executor::fail(const std::string& why) const {
  const Instruction& instruction = *current_;
  const Schedule& schedule = *program_->schedule;
  const Action& action = schedule.rows[world_.rank().index()][instruction.step];
  constexpr int kAround = 3;
  const int rank = world_.rank().value;
  const int step = static_cast<int>(instruction.step);
  std::ostringstream text;
  text << world_.name() << ", step " << step << ", action " << to_text(action) << " (stage "
       << places_[instruction.stage].stage.value;
  if (has_microbatch(instruction.action.kind())) text << ", microbatch " << instruction.action.microbatch().value;
  text << "): " << why << "\n";
  write_table(text, schedule.rows,
              {.first_step = std::max(0, step - kAround),
               .end_step = step + kAround + 1,
               .first_rank = std::max(0, rank - 2),
               .end_rank = rank + 3,
               .mark = TableMark{world_.rank(), step}});
  // Nested in it is what was thrown first: a binding shows it with its own traceback.
  std::throw_with_nested(StepError(text.str(), world_.rank(), to_text(action)));
}

}  // namespace stagecraft

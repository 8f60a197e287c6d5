#include "executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <sstream>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action_text.h"
#include "stagecraft/schedule/table.h"
#include "stagecraft/stage/packing.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {
namespace {

std::int64_t bytes_of(const Message& message) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : message.tensors) {
    if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

/// LibTorch's words for a stage that changes its input in place, and what to do about it.
std::string with_remedy(std::string text) {
  if (text.find("a leaf Variable that requires grad is being used in an in-place operation") != std::string::npos ||
      text.find("a view of a leaf Variable that requires grad is being used in an in-place operation") !=
          std::string::npos) {
    text += "\nIf it is an input of the stage: set copy_inputs in its StageOptions, or do not change it in place";
  }
  return text;
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
  if (averager != nullptr) averager->cancel();
  if (main_stream_) set_current_stream(*main_stream_);
  main_stream_.reset();
  for (Flight& in : flights_) in = Flight();
  outputs_ = StepOutputs();
  inputs_ = nullptr;
  world_.activity().set(std::nullopt);
}

StepOutputs Executor::run(const Program& program, const Schedule& schedule, const StepInputs& inputs) {
  inputs_ = &inputs;
  outputs_ = StepOutputs();
  outputs_.losses.resize(microbatches_);
  outputs_.outputs.resize(microbatches_);
  outputs_.reduced.assign(stages_.size(), false);
  timeline.clear();
  const at::AutoGradMode mode(inputs.training);
  run_program(program, schedule);
  if (averager != nullptr && inputs.training) finish_averaging();
  inputs_ = nullptr;
  world_.activity().set(std::nullopt);
  // A handler that replaces an action may leave something behind that the next step would take for its own.
  const bool is_handled = std::any_of(handlers.begin(), handlers.end(), [](const auto& handler) { return !!handler; });
  if (is_handled) flights_.assign(flights_.size(), Flight());
  return std::move(outputs_);
}

void Executor::reduce(std::size_t stage) {
  if (averager == nullptr) return;
  averager->start(stage);
  outputs_.reduced[stage] = true;
}

void Executor::finish_averaging() {
  for (const std::size_t stage : averaged_last) reduce(stage);
  averager->finish();
  if (!record) return;
  for (const Averager::Record& done : averager->records()) {
    const Action action = Action::of_stage(ActionKind::kReduceGrad, places_[done.stage].stage);
    timeline.push_back({action, done.start, done.end, done.waited, done.bytes, /*beside=*/true});
  }
}

void Executor::run_program(const Program& program, const Schedule& schedule) {
  const Row& row = schedule.rows[world_.rank().index()];
  for (std::size_t i = 0; i < program.size(); ++i) {
    const Action& action = row[program[i].step];
    current_ = &program[i];
    try {
      if (action.is_overlap()) {
        execute_overlap(program[i], program[i + 1], action);
        ++i;
      } else {
        execute(program[i], action);
      }
    } catch (const AbortedError& error) {
      throw AbortedError(
          std::string(error.what()) + " (at its step " + std::to_string(program[i].step) + ", " + to_text(action) + ")",
          error.peer());
    } catch (const c10::Error& error) {
      fail(schedule, with_remedy(error.what_without_backtrace()));
    } catch (const std::exception& error) {
      fail(schedule, error.what());
    } catch (...) {
      fail(schedule, kUnknownException);
    }
  }
}

// The halves of an overlap are in flight together: the first is issued to a stream beside the rank's own, the second to
// the rank's own, which then waits for the other. On a CPU they run one after the other.
void Executor::execute_overlap(const Instruction& first, const Instruction& second, const Action& overlap) {
  const std::function<void()> both = [&] {
    begin_overlap();
    execute(first, overlap.first());
    if (main_stream_) set_current_stream(*main_stream_);
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
  if (!overlap_stream_) overlap_stream_ = new_stream(device);
  main_stream_ = current_stream(device);
  run_after(*overlap_stream_, *main_stream_);
  set_current_stream(*overlap_stream_);
}

void Executor::end_overlap() {
  if (!main_stream_) return;
  run_after(*main_stream_, *overlap_stream_);
  main_stream_.reset();
}

void Executor::execute(const Instruction& instruction, const Action& action) {
  current_ = &instruction;
  world_.activity().set(action);
  // A name is made only when a profiler listens.
  at::RecordFunction range(at::RecordScope::USER_SCOPE);
  if (range.isActive()) range.before(to_text(action));
  const double start = record ? seconds_now() : 0;
  waited_ = 0;
  bytes_ = 0;
  const auto& handler = handlers[static_cast<std::size_t>(instruction.kind)];
  if (handler) {
    const std::function<void()> run = [&] { perform(instruction); };
    handler(ActionContext(stages_[instruction.stage], action, run));
  } else {
    perform(instruction);
  }
  if (record) timeline.push_back({action, start, seconds_now(), waited_, bytes_, /*beside=*/false});
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
    case ActionKind::kReduceGrad:
      return reduce(instruction.stage);
    default:
      return;  // UNSHARD and RESHARD have nothing to do where parameters are whole
  }
}

void Executor::send(const Instruction& instruction) {
  Flight& in = flight(instruction.stage, instruction.microbatch);
  const StageId stage = places_[instruction.stage].stage;
  const bool forward = instruction.kind == ActionKind::kSendForward;
  ValueList values;
  if (forward) {
    values = std::move(in.outgoing);
    values.emplace_back(in.rows);
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

void Executor::fail(const Schedule& schedule, const std::string& why) const {
  const Instruction& instruction = *current_;
  const Action& action = schedule.rows[world_.rank().index()][instruction.step];
  constexpr int kAround = 3;
  const int rank = world_.rank().value;
  const int step = static_cast<int>(instruction.step);
  std::ostringstream text;
  text << world_.name() << ", step " << step << ", action " << to_text(action) << " (stage "
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

// OVERLAP_F_B: a forward and a backward in flight together. On a CPU they run one after the other.
//
// On a device with streams each half has its own. Autograd runs a backward on the stream of its forward, so every
// microbatch in a stage has a side, own or second, for both; the forward of an overlap takes the side that its
// backward half does not have:
//
//     own     F0   F1 ┬ B0 ┬ F3 ┬ B1 ┬
//     second          └ F2 ┘ B2 ┘ F4 ┘
//
// Memory goes back to the stream that has allocated it. What a microbatch computes is allocated and freed on its side
// alone. What comes to it from elsewhere (inputs, gradients, seeds) is held until both halves have joined: freed
// earlier, the other half would take it while this one still reads it. See Fork.

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "executor.h"
#include "second_stream.h"
#include "stagecraft/stage/random.h"

namespace stagecraft {
namespace {

constexpr std::size_t kOwn = 0;  // lanes
constexpr std::size_t kSecond = 1;

}  // namespace

/// The backward half of an overlap that the forward's stage computes by itself.
struct Executor::Partner {
  const Instruction& instruction;
  const std::function<void()>& run;
};

/// Called before the first action of a step.
void Executor::begin_sides() {
  const c10::Device device = world_.device();
  has_sides_ = program_->has_overlaps && inputs_->training() && has_streams(device);
  if (!has_sides_) return;
  if (!second_stream_) second_stream_.emplace(device);
  own_stream_ = current_stream(device);
  for (Place& place : places_) place.accumulators.clear();  // parameters may be others now
}

/// Keeps what an action has read until nothing runs beside it.
void Executor::hold(Flight& in) {
  if (!has_sides_) return;
  std::move(in.incoming.begin(), in.incoming.end(), std::back_inserter(held_values_));
  for (auto* tensors : {&in.gradients_in, &in.seeds}) held_.insert(held_.end(), tensors->begin(), tensors->end());
}

void Executor::release_held() {
  held_values_.clear();
  held_.clear();
}

/// Makes the graph that is built next add its gradients on the microbatch's own stream.
void Executor::use_accumulators(std::uint32_t stage, const Flight& in) {
  if (!has_sides_ && !side_by_side_) return;
  std::vector<std::optional<Accumulators>>& all = places_[stage].accumulators;
  if (all.size() <= in.lane) all.resize(in.lane + 1);
  std::optional<Accumulators>& own = all[in.lane];
  if (!own) {
    std::vector<at::Tensor> weights;
    for (const auto& [name, parameter] : stages_[stage].parameters()) weights.push_back(parameter);
    own.emplace(weights);
  }
  own->use();
}

/// An action outside of overlaps.
void Executor::execute_alone(const Instruction& instruction) {
  if (!is_compute(instruction.action.kind())) return execute(instruction);
  if (side_by_side_) return execute_on_lane(instruction);
  if (!has_sides_) return execute(instruction);
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  if (instruction.action.kind() == ActionKind::kForward) in.lane = kOwn;
  if (in.lane == kSecond) {
    Fork fork(second_stream_->get());
    fork.enter(true);
    execute(instruction);
    fork.join();
  } else {
    execute(instruction);
  }
  release_held();
}

void Executor::execute_overlap(const Instruction& first, const Instruction& second, const Action& overlap) {
  const bool forward_first = first.action.kind() == ActionKind::kForward;
  const Instruction& forward = forward_first ? first : second;
  const Instruction& backward = forward_first ? second : first;
  const std::function<void()> both = [&] {
    std::optional<Fork> fork;
    if (has_sides_) {
      Flight& other = flight(backward.stage, backward.action.microbatch());
      flight(forward.stage, forward.action.microbatch()).lane = other.lane == kOwn ? kSecond : kOwn;
      // Before the streams part: only the one that waits for parameters is in order with them.
      for (const Instruction* half : {&forward, &backward}) require_parameters(half->stage);
      fork.emplace(second_stream_->get());
    }
    if (overlaps_by_itself(forward, backward)) {
      run_overlapped(forward, backward, fork);
    } else {
      for (const Instruction* half : {&first, &second}) {
        if (fork) fork->enter(flight(half->stage, half->action.microbatch()).lane == kSecond);
        execute(*half);
      }
    }
    if (fork) fork->join();
    release_held();
  };
  const auto& handler = handlers_[static_cast<std::size_t>(ActionKind::kOverlap)];
  if (!handler) return both();
  current_ = &first;
  handler(ActionContext(stages_[first.stage], overlap, both));
}

bool Executor::overlaps_by_itself(const Instruction& forward, const Instruction& backward) {
  const auto is_handled = [&](ActionKind kind) { return !!handlers_[static_cast<std::size_t>(kind)]; };
  const std::vector<SegmentFlight>& parts = flight(backward.stage, backward.action.microbatch()).segments;
  return stages_[forward.stage].options().overlapped && inputs_->training() &&
         backward.action.kind() == ActionKind::kBackward && parts.size() == 1 && !parts.front().is_dropped &&
         !is_handled(ActionKind::kForward) && !is_handled(ActionKind::kBackward);
}

/// Both halves in one call of the forward's stage, which is issued to the forward's side, and the backward to its own.
/// A timeline has all of it as the forward, and a backward that takes no time.
void Executor::run_overlapped(const Instruction& forward, const Instruction& backward, std::optional<Fork>& fork) {
  const Flight& ahead = flight(forward.stage, forward.action.microbatch());
  Flight& back = flight(backward.stage, backward.action.microbatch());
  current_ = &forward;
  world_.activity().set(forward.action);
  const auto record = [&](const Action& action, double start) {
    if (!record_) return;
    if (times_) return times_->finish(action, 0);
    timeline_.push_back({action, start, world_.transport().now(), waited_, 0, /*beside=*/false});
  };
  const auto start = [&] {
    waited_ = 0;
    if (records_events()) times_->start();
    return record_ && !times_ ? world_.transport().now() : 0;
  };
  if (fork) fork->enter(ahead.lane == kSecond);
  const double begin = start();
  waited_ += require_parameters(forward.stage) + require_parameters(backward.stage);
  if (fork) fork->enter(back.lane == kSecond);
  begin_backward(backward);
  arriving_.insert(arriving_.end(), relayed_.begin(), relayed_.end());
  if (fork) fork->enter(ahead.lane == kSecond);
  if (fork) fork->order(/*second_is_later=*/ahead.lane == kSecond);  // the stage may read the gradients there
  bool was_called = false;
  const auto around = [&](const std::function<void()>& run) {
    const std::function<void()> run_aside = [&] {
      std::optional<c10::impl::ExcludeDispatchKeyGuard> no_autocast;  // that is for forwards
      if (options_.precision.autocast) no_autocast.emplace(c10::autocast_dispatch_keyset);
      std::optional<GlobalRandom> not_the_forwards;
      if (!is_capturing_) not_the_forwards.emplace();
      const auto no_random = no_random_in_backward(backward.stage);
      was_called = true;
      if (fork) fork->enter(back.lane == kSecond);
      run();
      if (fork) fork->enter(ahead.lane == kSecond);
    };
    Partner partner{backward, run_aside};
    partner_ = &partner;
    this->forward(forward);
    partner_ = nullptr;
  };
  std::vector<at::Tensor> gradients = back.segments.front().backward.full_within(arriving_, around);
  record(forward.action, begin);
  current_ = &backward;
  world_.activity().set(backward.action);
  if (fork) fork->enter(back.lane == kSecond);
  if (fork && !was_called) fork->order(/*second_is_later=*/back.lane == kSecond);  // the stage has made them there
  const double second = start();
  end_backward(backward, gradients, /*at_once=*/true);
  parameters_.collect_gradients(backward.stage);
  record(backward.action, second);
}

/// The stage's own function, in place of its forward.
Value Executor::run_with_partner(const Instruction& instruction, const StageCall& call) {
  const StageOverlap& own = stages_[instruction.stage].options().overlapped;
  const StageForward both = [&](const StageCall& visited) {
    const Instruction& other = partner_->instruction;
    return own({visited, places_[other.stage].stage, other.action.microbatch(), arriving_, partner_->run});
  };
  return Stage::visit(both, call);
}

}  // namespace stagecraft

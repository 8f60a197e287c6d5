#include "segments.h"

#include <ATen/ATen.h>

#include "stagecraft/core/error.h"
#include "stagecraft/stage/stand_ins.h"

namespace stagecraft {
namespace {

Value run_segment(const Segment& segment, const Stage& stage, const StageCall& call) {
  return segment.forward ? Stage::visit(segment.forward, call) : stage.forward(call);
}

/// One callable of several layers.
StageForward chained(std::vector<StageLayer> layers) {
  return [layers = std::move(layers)](const StageCall& call) {
    static const ValueDict no_keywords;
    Value value = layers.front().forward(call);
    for (std::size_t i = 1; i < layers.size(); ++i) {
      const ValueList arguments = as_arguments(std::move(value));
      value = layers[i].forward({call.stage, call.microbatch, arguments, no_keywords, call.any_float});
    }
    return value;
  };
}

using Versions = std::vector<std::uint32_t>;

void for_each_input(const StageCall& call, const std::function<void(const at::Tensor&)>& visit) {
  const auto defined = [&](const at::Tensor& tensor) {
    if (tensor.defined() && !tensor.is_inference()) visit(tensor);
  };
  for (const Value& argument : call.arguments) argument.for_each_tensor(defined);
  for (const auto& [name, value] : call.keywords) value.for_each_tensor(defined);
}

/// Every operation that changes a tensor in place counts its version up.
Versions versions_of(const StageCall& call) {
  Versions versions;
  for_each_input(call, [&](const at::Tensor& tensor) { versions.push_back(tensor._version()); });
  return versions;
}

/// The call with copies of all tensors, which the callable may change in place.
class CallOnCopies {
 public:
  explicit CallOnCopies(const StageCall& call) {
    for (const Value& argument : call.arguments) arguments_.push_back(copy_of(argument));
    for (const auto& [name, value] : call.keywords) keywords_.emplace_back(name, copy_of(value));
    call_.emplace(StageCall{call.stage, call.microbatch, arguments_, keywords_, call.any_float});
  }
  [[nodiscard]] const StageCall& call() const { return *call_; }

 private:
  ValueList arguments_;
  ValueDict keywords_;
  std::optional<StageCall> call_;
};

/// The first forward finds out what the segment changes in place.
Value run_and_learn(Segment& segment, const Stage& stage, const StageCall& call, SegmentFlight& in) {
  std::vector<at::Tensor> before;
  for (const auto& [name, buffer] : stage.buffers()) before.push_back(buffer.defined() ? buffer.clone() : buffer);
  const CallOnCopies copies(call);
  const Versions versions = versions_of(copies.call());
  Value output = run_segment(segment, stage, copies.call());
  Segment::Learnt learnt;
  learnt.mode = segment.mode;
  learnt.changes_input = versions_of(copies.call()) != versions;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!before[i].defined() || at::equal(before[i], stage.buffers()[i].second)) continue;
    learnt.changing.push_back(i);
    if (in.is_dropped) in.buffers.push_back(before[i]);
  }
  constexpr std::size_t kMost = 16;  // a mode may also be one that never comes back
  if (segment.learnt.size() == kMost) segment.learnt.erase(segment.learnt.begin());
  segment.learnt.push_back(std::move(learnt));
  return output;
}

Value run_knowingly(const Segment& segment, const Stage& stage, const StageCall& call, SegmentFlight& in) {
  const Segment::Learnt& learnt = *segment.known();
  if (in.is_dropped) {
    for (const std::size_t i : learnt.changing) in.buffers.push_back(stage.buffers()[i].second.clone());
  }
  if (learnt.changes_input) return run_segment(segment, stage, CallOnCopies(call).call());
  const Versions versions = versions_of(call);
  Value output = run_segment(segment, stage, call);
  if (!in.is_dropped || versions_of(call) == versions) return output;
  throw InvalidArgument(
      "it changes its input in place, but did not in its first forward: to compute it again, the input must stay as it "
      "was; set copy_inputs in its StageOptions, or leave it out of the recompute");
}

}  // namespace

std::vector<Segment> segments_of(const Stage& stage, const Recompute& recompute) {
  std::vector<Segment> segments;
  const auto add = [&](StageForward forward, bool again) {
    Segment& segment = segments.emplace_back();
    segment.forward = std::move(forward);
    segment.again = again;
  };
  if (stage.options().overlapped && recompute.is_any()) {
    throw InvalidArgument("stage " + std::to_string(stage.index().value) +
                          " computes overlaps by itself (StageOptions::overlapped), so it cannot be recomputed: leave "
                          "out one of them");
  }
  if (recompute.kind() == Recompute::Kind::kNothing || recompute.kind() == Recompute::Kind::kStage) {
    add({}, recompute.is_any());
    return segments;
  }
  if (recompute.kind() == Recompute::Kind::kLayers && recompute.layers() < 1) {
    throw InvalidArgument("Recompute::every takes at least 1 layer, got " + std::to_string(recompute.layers()));
  }
  std::vector<StageLayer> layers;
  if (stage.options().layers) layers = stage.options().layers();
  if (layers.empty()) {
    throw InvalidArgument("stage " + std::to_string(stage.index().value) +
                          " has no layers that could be recomputed separately: use Recompute::stage(), or give "
                          "StageOptions::layers");
  }
  if (stage.options().auxiliary_loss) {
    throw InvalidArgument("stage " + std::to_string(stage.index().value) +
                          " has an auxiliary loss, which may come from any of its layers, so they cannot be recomputed "
                          "separately: use Recompute::stage()");
  }
  std::vector<StageLayer> together;
  bool again = recompute.kind() == Recompute::Kind::kLayers;
  const auto close = [&] {
    if (!together.empty()) add(chained(std::exchange(together, {})), again);
  };
  for (StageLayer& layer : layers) {
    if (recompute.kind() == Recompute::Kind::kLayers) {
      if (static_cast<std::int64_t>(together.size()) == recompute.layers()) close();
    } else {
      const bool chosen = recompute.chooses(layer.name);
      if (chosen || again) close();
      again = chosen;
    }
    together.push_back(std::move(layer));
  }
  close();
  return segments;
}

const Segment::Learnt* Segment::known() const {
  const auto found = std::find_if(learnt.begin(), learnt.end(), [&](const Learnt& one) { return one.mode == mode; });
  return found == learnt.end() ? nullptr : &*found;
}

void begin_step(std::vector<Segment>& segments, const Stage& stage) {
  const auto learns = [](const Segment& segment) { return !segment.is_whole_stage(); };
  if (!stage.options().mode || std::none_of(segments.begin(), segments.end(), learns)) return;
  const std::uint64_t mode = stage.options().mode();
  for (Segment& segment : segments) segment.mode = mode;
}

Value run_first(Segment& segment, const Stage& stage, const StageCall& call, bool drop, RandomScope& random,
                SegmentFlight& in) {
  in.is_dropped = drop;
  if (segment.is_whole_stage()) return stage.forward(call);
  in.buffers.clear();
  if (drop) random.begin_segment();
  Value output = segment.known() ? run_knowingly(segment, stage, call, in) : run_and_learn(segment, stage, call, in);
  if (drop) in.random = random.end_segment();
  return output;
}

Value run_again(const Segment& segment, const Stage& stage, const StageCall& call, RandomScope& random,
                SegmentFlight& in) {
  in.is_dropped = false;
  random.restore(std::exchange(in.random, {}));
  const Segment::Learnt& learnt = *segment.known();
  const StandIns buffers = StandIns::of_buffers(stage, learnt.changing, std::exchange(in.buffers, {}));
  return learnt.changes_input ? run_segment(segment, stage, CallOnCopies(call).call())
                              : run_segment(segment, stage, call);
}

}  // namespace stagecraft

// Microbatches of a captured step side by side: see lanes.h.

#include <algorithm>
#include <set>

#include "executor.h"
#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

// Beyond these, kernels fill a GPU by themselves, and what lanes save is not worth their memory.
constexpr int kUsualLanes = 8;
constexpr std::int64_t kMostHandedOn = 8 << 20;

}  // namespace

Executor::SideBySide::SideBySide(std::vector<std::size_t> lanes_of_microbatches,
                                 std::vector<std::size_t> orders_of_stages, StepGraphs& graphs, c10::DeviceType device)
    : lanes(std::move(lanes_of_microbatches)),
      orders(std::move(orders_of_stages)),
      watch(device, [&](const c10::StorageImpl* memory) { return graphs.is_gradient(memory); }),
      streams(graphs.branches(*std::max_element(lanes.begin(), lanes.end())), orders.size()) {}

/// Only a step without messages has lanes: pieces between two messages hold little that could run side by side.
void Executor::begin_lanes() {
  lanes_captured_ = 1;
  if (record_) return;  // a timeline is a list of actions one after the other
  if (!why_one_lane_.empty() || program_->has_overlaps || program_->has_messages) return;
  const int usual = most_handed_on_ <= kMostHandedOn ? kUsualLanes : 1;
  const auto most = static_cast<std::size_t>(options_.lanes > 0 ? options_.lanes : usual);
  std::vector<std::size_t> orders = orders_of(stages_);
  if (std::set<std::size_t>(orders.begin(), orders.end()).size() == 1) return;
  std::vector<std::size_t> lanes = lanes_of(*program_, microbatches_, most);
  lanes_captured_ = 1 + static_cast<int>(*std::max_element(lanes.begin(), lanes.end()));
  if (lanes_captured_ == 1) return;
  for (Place& place : places_) place.accumulators.clear();
  side_by_side_.emplace(std::move(lanes), std::move(orders), *graphs_, world_.device().type());
}

/// Throws if microbatches must not be computed side by side; the next capture has one lane.
void Executor::end_lanes() {
  if (!side_by_side_) return;
  side_by_side_->streams.join();
  why_one_lane_ = side_by_side_->watch.found();
  side_by_side_.reset();
  for (Place& place : places_) place.accumulators.clear();  // later graphs add up gradients on the rank's own stream
  if (!why_one_lane_.empty()) throw InvalidArgument("microbatches cannot be computed side by side: " + why_one_lane_);
}

void Executor::execute_on_lane(const Instruction& instruction) {
  SideBySide& all = *side_by_side_;
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  in.lane = all.lanes[instruction.action.microbatch().index()];
  const std::size_t order = all.orders[instruction.stage];
  all.streams.enter(in.lane, order);
  all.watch.enter(in.lane, order);
  execute(instruction);
  all.streams.leave();
}

}  // namespace stagecraft

#include "lanes.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "program.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {

std::vector<std::size_t> lanes_of(const Program& program, std::size_t microbatches, std::size_t most) {
  std::vector<std::size_t> left(microbatches, 0);  // computations of each that are to come
  for (const Instruction& instruction : program.instructions) {
    if (is_compute(instruction.action.kind())) ++left[instruction.action.microbatch().index()];
  }
  std::vector<std::size_t> lanes(microbatches, 0);
  std::vector<bool> has_lane(microbatches, false);
  std::vector<std::size_t> users(most, 0);
  for (const Instruction& instruction : program.instructions) {
    if (!is_compute(instruction.action.kind())) continue;
    const std::size_t microbatch = instruction.action.microbatch().index();
    if (!has_lane[microbatch]) {
      has_lane[microbatch] = true;
      lanes[microbatch] = static_cast<std::size_t>(std::min_element(users.begin(), users.end()) - users.begin());
      ++users[lanes[microbatch]];
    }
    if (--left[microbatch] == 0) --users[lanes[microbatch]];
  }
  return lanes;
}

std::vector<std::size_t> orders_of(const std::vector<Stage>& stages) {
  std::vector<std::size_t> orders(stages.size());
  std::iota(orders.begin(), orders.end(), 0);
  std::map<const void*, std::size_t> owners;  // of memory; null: of tensors that have none of their own to compare
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (const auto* tensors : {&stages[stage].parameters(), &stages[stage].buffers()}) {
      for (const auto& [name, tensor] : *tensors) {
        if (!tensor.defined()) continue;
        const void* memory = tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
        const auto [owner, is_new] = owners.emplace(memory, stage);
        if (is_new || orders[owner->second] == orders[stage]) continue;
        std::replace(orders.begin(), orders.end(), orders[stage], orders[owner->second]);
      }
    }
  }
  return orders;
}

Lanes::Lanes(const std::vector<c10::Stream>& branches, std::size_t orders) : orders_(orders) {
  const c10::Stream own = current_stream(branches.front().device());
  lanes_.push_back({own, /*has_begun=*/true});
  for (const c10::Stream& branch : branches) lanes_.push_back({branch});
  begin_.emplace(own.device_type());
  begin_->record(own);
}

Lanes::~Lanes() {
  if (is_joined_) return;
  try {
    join();
  } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): something has failed already
  }
}

void Lanes::enter(std::size_t lane, std::size_t order) {
  Lane& own = lanes_[lane];
  if (!own.has_begun) begin_->block(own.stream);
  own.has_begun = true;
  if (orders_[order].done && orders_[order].lane != lane) orders_[order].done->block(own.stream);
  set_current_stream(own.stream);
  lane_ = lane;
  order_ = order;
}

void Lanes::leave() {
  Order& own = orders_[order_];
  own.lane = lane_;
  own.done.emplace(lanes_[lane_].stream.device_type());
  own.done->record(lanes_[lane_].stream);
}

void Lanes::join() {
  is_joined_ = true;
  set_current_stream(lanes_.front().stream);
  for (std::size_t lane = 1; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].has_begun) run_after(lanes_.front().stream, lanes_[lane].stream);
  }
}

}  // namespace stagecraft

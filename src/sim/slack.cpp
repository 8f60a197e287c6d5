#include "stagecraft/sim/slack.h"

#include <algorithm>
#include <limits>

#include "stagecraft/core/error.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/dataflow.h"

namespace stagecraft {
namespace {

struct SlotAt {
  std::size_t rank;
  std::size_t slot;
};

/// Goes through the actions against their order of execution: what an action has left is what its successors have left,
/// and the gap to them.
class Backwards {
 public:
  Backwards(const Schedule& schedule, const Costs& costs, const Simulation& simulation)
      : schedule_(schedule),
        costs_(costs),
        times_(simulation.times),
        communicates_(schedule.communicates()),
        consumers_(compute_slots(schedule)) {
    for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
      slack_.emplace_back(schedule.rows[r].size(), simulation.makespan - simulation.ranks[r].end);
    }
  }

  std::vector<std::vector<double>> run() {
    const std::vector<SlotAt> order = order_of_execution();
    for (auto at = order.rbegin(); at != order.rend(); ++at) visit(*at);
    return std::move(slack_);
  }

 private:
  [[nodiscard]] Action message_of(const Action& part) const {
    if (!communicates_) return message_given(schedule_.placement, part);
    return is_send(part.kind()) ? part : Action::idle();
  }

  std::vector<SlotAt> order_of_execution() {
    std::vector<SlotAt> order;
    std::vector<std::size_t> next(schedule_.rows.size(), 0);
    StageMicrobatchTable<std::uint8_t> sent(schedule_);
    const auto bit = [](const Action& send) { return send.kind() == ActionKind::kSendForward ? 1U : 2U; };
    const auto lacks = [&](const Action& part) {
      const Action send = message_needed(schedule_.placement, part);
      return !send.is_idle() && (sent(send.stage(), send.microbatch()) & bit(send)) == 0;
    };
    Dataflow flow(schedule_);
    flow.run([&](std::size_t rank, const Action& action) {
      if (lacks(action.first()) || lacks(action.second())) return false;
      order.push_back({rank, next[rank]++});
      for_each_part(action, [&](const Action& part) {
        const Action send = message_of(part);
        if (send.is_idle()) return;
        auto& bits = sent(send.stage(), send.microbatch());
        bits = static_cast<std::uint8_t>(bits | bit(send));
        flow.wake(schedule_.placement.rank_of(peer_stage(send)).index());
      });
      return true;
    });
    return order;
  }

  void visit(const SlotAt& at) {
    double& left = slack_[at.rank][at.slot];
    const double end = times_[at.rank][at.slot].end;
    if (at.slot + 1 < slack_[at.rank].size()) {
      left = slack_[at.rank][at.slot + 1] + std::max(0.0, times_[at.rank][at.slot + 1].start - end);
    }
    for_each_part(schedule_.rows[at.rank][at.slot], [&](const Action& part) {
      const Action send = message_of(part);
      if (!send.is_idle()) left = std::min(left, left_to_consumer(send, end));
    });
  }

  [[nodiscard]] double left_to_consumer(const Action& send, double end) const {
    const StageId stage = peer_stage(send);
    const ComputeSlots slots = consumers_(stage, send.microbatch());
    const bool forward = send.kind() == ActionKind::kSendForward;
    const int slot = forward ? slots.forward : slots.backward;
    if (slot < 0) return std::numeric_limits<double>::infinity();
    const RankId from = schedule_.placement.rank_of(send.stage());
    const RankId to = schedule_.placement.rank_of(stage);
    const LinkCosts link = costs_.between(from, to);
    const StageCosts& sender = costs_.of(send.stage());
    const double bytes = forward ? sender.forward_bytes : sender.backward_bytes;
    const double arrival = end + link.latency + (link.bandwidth > 0 ? bytes / link.bandwidth : 0);
    const auto at = static_cast<std::size_t>(slot);
    return slack_[to.index()][at] + std::max(0.0, times_[to.index()][at].start - arrival);
  }

  const Schedule& schedule_;
  const Costs& costs_;
  const std::vector<std::vector<ActionTime>>& times_;
  bool communicates_;
  StageMicrobatchTable<ComputeSlots> consumers_;
  std::vector<std::vector<double>> slack_;
};

}  // namespace

std::vector<std::vector<double>> slack(const Schedule& schedule, const Costs& costs, const Simulation& simulation) {
  if (simulation.times.size() != schedule.rows.size()) {
    throw InvalidArgument("slack needs the times of a simulation: simulate with keep_times");
  }
  require_sound(schedule);
  return Backwards(schedule, costs, simulation).run();
}

}  // namespace stagecraft

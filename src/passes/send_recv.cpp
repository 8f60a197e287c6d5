// Think of sweeps over the ranks in ascending order, one action per rank and sweep. When an action runs whose result a
// stage on another rank needs, its SEND is written here and its RECV, at that very moment, at the end of the other
// rank's list. All lists are thus cuts of one global order, in which each message is a single event: no model of
// communication can deadlock on it.
//
// The sweeps are not walked: an action's sweep follows from the sweep before it on its rank and from those of the
// actions it needs. With every action's sweep known, a rank's list is a merge of its own actions with the messages of
// its neighbours, by (sweep, rank).

#include <algorithm>

#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/action_text.h"
#include "stagecraft/schedule/dataflow.h"
#include "stagecraft/schedule/message.h"
#include "stagecraft/schedule/stage_microbatch_table.h"
#include "stream_merge.h"
#include "well_formed.h"

namespace stagecraft {
namespace {

using Sweep = std::int32_t;  // from 1 on; 0 means not yet

/// The messages from one stage to a neighbour stage on another rank, in the order they are sent.
struct Stream {
  bool exists = false;
  Action receive;          // the kind and stage of their RECVs
  std::size_t source = 0;  // the sending rank
  std::size_t target = 0;  // the receiving rank
  /// Twice the microbatch, plus one if the message comes from the second half of an overlap.
  std::vector<std::uint32_t> sent;
};

class Lowering {
 public:
  explicit Lowering(Schedule& schedule)
      : schedule_(schedule),
        placement_(schedule.placement),
        forward_sweep_(schedule),
        backward_sweep_(schedule),
        clock_(schedule.rows.size(), 0),
        sweeps_(schedule.rows.size()),
        streams_(2 * static_cast<std::size_t>(schedule.stages())) {
    for (int stage = 0; stage < schedule.stages(); ++stage) {
      open_stream(Action::forward(StageId(stage), MicrobatchId(0)));
      open_stream(Action::backward(StageId(stage), MicrobatchId(0)));
    }
  }

  void run() {
    Dataflow flow(schedule_);
    for (std::size_t r = 0; r < sweeps_.size(); ++r) sweeps_[r].reserve(schedule_.rows[r].size());
    flow.run([&](std::size_t rank, const Action& action) { return run_action(flow, rank, action); });
    if (const int blocked = flow.first_blocked(); blocked >= 0) {
      refuse(static_cast<std::size_t>(blocked), flow.position()[static_cast<std::size_t>(blocked)]);
    }
    for (std::size_t r = 0; r < schedule_.rows.size(); ++r) merge(r);
  }

 private:
  void open_stream(const Action& giver) {
    const Action send = message_given(placement_, giver);
    if (send.is_idle()) return;
    Stream& stream = stream_of(giver.kind(), giver.stage());
    stream.exists = true;
    stream.receive = counterpart(send);
    stream.source = placement_.rank_of(giver.stage()).index();
    stream.target = placement_.rank_of(stream.receive.stage()).index();
  }

  /// The stream that an F, B or I of a stage feeds.
  Stream& stream_of(ActionKind kind, StageId stage) {
    return streams_[2 * stage.index() + (kind == ActionKind::kForward ? 0 : 1)];
  }

  // --- the sweep of every action ---

  bool run_action(Dataflow& flow, std::size_t rank, const Action& action) {
    Sweep sweep = clock_[rank] + 1;
    if (!action.is_overlap()) {
      if (!wait_for_inputs(action, rank, sweep)) return false;
      finish(flow, action, sweep, 0);
    } else {
      if (!wait_for_inputs(action.first(), rank, sweep)) return false;
      if (!wait_for_inputs(action.second(), rank, sweep)) return false;
      finish(flow, action.first(), sweep, 0);
      finish(flow, action.second(), sweep, 1);
    }
    clock_[rank] = sweep;
    sweeps_[rank].push_back(sweep);
    return true;
  }

  /// Moves `sweep` to where all that the part needs is there; false if that is not known yet.
  [[nodiscard]] bool wait_for_inputs(const Action& part, std::size_t rank, Sweep& sweep) const {
    StageId from = part.stage();
    Sweep given = 0;
    if (part.kind() == ActionKind::kForward && from.value > 0) {
      from = from - 1;
      given = forward_sweep_(from, part.microbatch());
    } else if (gives_input_gradient(part.kind()) && from.value + 1 < schedule_.stages()) {
      from = from + 1;
      given = backward_sweep_(from, part.microbatch());
    } else {
      return true;
    }
    if (given == 0) return false;
    // A lower rank has had its turn when this one comes, a higher one has not.
    sweep = std::max(sweep, placement_.rank_of(from).index() < rank ? given : given + 1);
    return true;
  }

  void finish(Dataflow& flow, const Action& part, Sweep sweep, std::uint32_t half) {
    const ActionKind kind = part.kind();
    if (kind == ActionKind::kForward) {
      forward_sweep_(part.stage(), part.microbatch()) = sweep;
    } else if (gives_input_gradient(kind)) {
      backward_sweep_(part.stage(), part.microbatch()) = sweep;
    } else {
      return;
    }
    Stream& stream = stream_of(kind, part.stage());
    if (!stream.exists) return;
    if (stream.sent.empty()) stream.sent.reserve(static_cast<std::size_t>(schedule_.microbatches));
    stream.sent.push_back(2 * static_cast<std::uint32_t>(part.microbatch().value) + half);
    flow.wake(stream.target);
  }

  // --- the lists ---

  /// The moment of an action in the global order, as one number: sweep, then rank, then half of an overlap.
  static std::uint64_t moment(Sweep sweep, std::size_t rank, std::uint32_t half) {
    return static_cast<std::uint64_t>(sweep) << 32 | rank << 1 | half;
  }

  [[nodiscard]] std::uint64_t moment_of(const Stream& stream, std::size_t position) const {
    const std::uint32_t message = stream.sent[position];
    const auto& sweeps = stream.receive.kind() == ActionKind::kRecvForward ? forward_sweep_ : backward_sweep_;
    return moment(sweeps(peer_stage(stream.receive), MicrobatchId(message / 2)), stream.source, message % 2);
  }

  /// The streams that arrive at a rank, each at its first message.
  detail::StreamMerge arrivals(std::size_t rank, std::vector<const Stream*>& streams) {
    detail::StreamMerge merge;
    const auto add = [&](StageId giver, ActionKind kind) {
      if (!placement_.contains(giver)) return;
      const Stream& stream = stream_of(kind, giver);
      if (stream.sent.empty() || stream.target != rank) return;
      merge.add(moment_of(stream, 0), streams.size());
      streams.push_back(&stream);
    };
    for (const StageId stage : placement_.stages_of(RankId(rank))) {
      add(stage - 1, ActionKind::kForward);
      add(stage + 1, ActionKind::kBackward);
    }
    return merge;
  }

  /// Exactly as many slots as the list will have, so that a large schedule is never held twice while a list grows.
  [[nodiscard]] std::size_t merged_size(std::size_t rank, const std::vector<const Stream*>& received) const {
    std::size_t size = schedule_.rows[rank].size();
    for (const Stream* stream : received) size += stream->sent.size();
    for (const StageId stage : placement_.stages_of(RankId(rank))) {
      size += streams_[2 * stage.index()].sent.size() + streams_[2 * stage.index() + 1].sent.size();
    }
    return size;
  }

  void push_send(Row& row, const Action& part) {
    const ActionKind kind = part.kind();
    if (kind != ActionKind::kForward && !gives_input_gradient(kind)) return;
    if (!stream_of(kind, part.stage()).exists) return;
    row.emplace_back(kind == ActionKind::kForward ? ActionKind::kSendForward : ActionKind::kSendBackward, part.stage(),
                     part.microbatch());
  }

  void merge(std::size_t rank) {
    std::vector<const Stream*> streams;
    detail::StreamMerge arriving = arrivals(rank, streams);
    std::vector<std::size_t> position(streams.size(), 0);
    Row merged;
    merged.reserve(merged_size(rank, streams));
    const auto receive_before = [&](std::uint64_t own) {
      while (arriving.next_key() < own) {
        const std::size_t i = arriving.next_stream();
        const Stream& stream = *streams[i];
        const MicrobatchId microbatch(stream.sent[position[i]] / 2);
        merged.emplace_back(stream.receive.kind(), stream.receive.stage(), microbatch);
        arriving.advance(++position[i] < stream.sent.size() ? moment_of(stream, position[i])
                                                            : detail::StreamMerge::kDone);
      }
    };
    const Row& row = schedule_.rows[rank];
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].is_idle()) continue;
      receive_before(moment(sweeps_[rank][i], rank, 0));
      merged.push_back(row[i]);
      for_each_part(row[i], [&](const Action& part) { push_send(merged, part); });
    }
    receive_before(detail::StreamMerge::kDone);
    schedule_.rows[rank] = std::move(merged);
    std::vector<Sweep>().swap(sweeps_[rank]);
  }

  [[noreturn]] void refuse(std::size_t rank, std::size_t step) const {
    const std::string action = to_text(schedule_.rows[rank][step]);
    throw ScheduleError("send_recv: rank " + std::to_string(rank) + ", step " + std::to_string(step) + ": " + action +
                            " waits for a result that no rank can reach: the order cannot execute; run check to see "
                            "the cycle",
                        RankId(rank), static_cast<int>(step), action);
  }

  Schedule& schedule_;
  const Placement& placement_;
  StageMicrobatchTable<Sweep> forward_sweep_;
  StageMicrobatchTable<Sweep> backward_sweep_;
  std::vector<Sweep> clock_;
  std::vector<std::vector<Sweep>> sweeps_;  // per slot of each row
  std::vector<Stream> streams_;             // per stage: forward, backward
};

}  // namespace

void send_recv(Schedule& schedule) {
  detail::require_well_formed(schedule, "send_recv", is_communication,
                              "the schedule has communication already: give one without");
  Lowering(schedule).run();
}

}  // namespace stagecraft

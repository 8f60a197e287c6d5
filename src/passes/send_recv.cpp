// Imagine sweeps over the ranks in ascending order, one action per rank and sweep. When an action runs whose result
// another rank needs, its SEND is appended to the list of its own rank and, at the same moment, its RECV to the list of
// the other rank. All lists are thus restrictions of one global order, in which each message is a single event, so no
// model of communication can deadlock.
//
// The sweeps are not simulated one by one: the sweep of an action follows from the previous sweep of its rank and from
// the sweeps of the actions it needs. Once all sweeps are known, a rank's list is its own actions merged with the
// messages of its neighbours, by (sweep, rank).

#include <algorithm>

#include "rewrite.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/dataflow.h"

namespace stagecraft {
namespace {

using Sweep = std::int32_t;  // counts from 1; 0 means not known yet

/// K-way merge of sorted streams of keys: gives the stream with the smallest next key. A binary heap whose top is
/// replaced in place, which takes one or two comparisons for the two to four streams of a typical rank.
class StreamMerge {
 public:
  /// Larger than every key: a stream at its end.
  static constexpr std::uint64_t kDone = UINT64_MAX;

  void add(std::uint64_t first_key, std::size_t stream) {
    heap_.emplace_back(first_key, stream);
    for (std::size_t i = heap_.size() - 1; i > 0 && heap_[i].first < heap_[(i - 1) / 2].first; i = (i - 1) / 2) {
      std::swap(heap_[i], heap_[(i - 1) / 2]);
    }
  }

  [[nodiscard]] std::uint64_t next_key() const { return heap_.empty() ? kDone : heap_.front().first; }
  [[nodiscard]] std::size_t next_stream() const { return heap_.front().second; }

  /// Sets the next key of the stream that `next_stream` gave.
  void advance(std::uint64_t key) {
    const std::pair moving(key, heap_.front().second);
    std::size_t i = 0;
    for (std::size_t child = 1; child < heap_.size(); child = 2 * i + 1) {
      if (child + 1 < heap_.size() && heap_[child + 1].first < heap_[child].first) ++child;
      if (heap_[child].first >= key) break;
      heap_[i] = heap_[child];
      i = child;
    }
    heap_[i] = moving;
  }

 private:
  std::vector<std::pair<std::uint64_t, std::size_t>> heap_;
};

/// A sent message: the sweep of its SEND, its microbatch, and which half of an overlap produced it.
class Message {
 public:
  Message() = default;
  Message(Sweep sweep, MicrobatchId microbatch, std::uint32_t half)
      : bits_(static_cast<std::uint64_t>(sweep) << 32 | static_cast<std::uint32_t>(microbatch.value) << 1 | half) {}

  [[nodiscard]] MicrobatchId microbatch() const { return MicrobatchId((bits_ & UINT32_MAX) >> 1); }
  /// The position in the global order as one number: sweep, then rank, then half of an overlap.
  [[nodiscard]] std::uint64_t moment(std::size_t sender) const {
    return (bits_ & ~std::uint64_t{UINT32_MAX}) | sender << 1 | (bits_ & 1);
  }

 private:
  std::uint64_t bits_;
};

/// Inputs and outputs of the F, or of the B or I, of one stage, for all microbatches.
struct Port {
  const Sweep* needed = nullptr;  // by microbatch: sweep of its input; null if it has no input
  Sweep delay = 0;                // 1 if its input comes from a rank that is not earlier in a sweep
  Sweep* given = nullptr;         // by microbatch: sweep in which it runs
  Action receive;                 // kind and stage of the RECVs of its result; idle if no other rank needs it
  std::size_t target = 0;         // rank of these RECVs
  Message* sent = nullptr;        // messages of its results, in order of sending
  std::size_t sent_count = 0;
};

/// The messages of one port, being merged into the list of the receiving rank.
struct Arrivals {
  const Message* next;
  const Message* end;
  std::size_t sender;
  Action receive;

  [[nodiscard]] std::uint64_t next_moment() const { return next == end ? StreamMerge::kDone : next->moment(sender); }
};

class Lowering {
 public:
  explicit Lowering(Schedule& schedule)
      : schedule_(schedule),
        placement_(schedule.placement),
        clock_(schedule.rows.size(), 0),
        ports_(2 * static_cast<std::size_t>(schedule.stages())) {
    const auto microbatches = static_cast<std::size_t>(schedule.microbatches);
    sweeps_.resize(ports_.size() * microbatches);
    std::size_t streams = 0;
    for (int s = 0; s < schedule.stages(); ++s) {
      for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
        Port& port = port_of(kind, StageId(s));
        port.given = sweeps_.data() + static_cast<std::size_t>(&port - ports_.data()) * microbatches;
        connect(port, kind, StageId(s));
        streams += port.receive.is_idle() ? 0 : 1;
      }
    }
    messages_.resize(streams * microbatches);
    Message* sent = messages_.data();
    for (Port& port : ports_) {
      if (port.receive.is_idle()) continue;
      port.sent = sent;
      sent += microbatches;
    }
  }

  void run() {
    Dataflow flow(schedule_);
    flow.run([&](std::size_t rank, const Action& action) { return run_action(flow, rank, action); });
    if (const int blocked = flow.first_blocked(); blocked >= 0) {
      const RankId rank(blocked);
      refuse(rank, schedule_.rows[rank.index()][flow.position()[rank.index()]],
             "waits for a result that no rank can reach: the order cannot execute; run check to see the cycle");
    }
    detail::for_each_rank(schedule_, [&](std::size_t r) { merge(r); });
  }

 private:
  static bool has_port(ActionKind kind) { return kind == ActionKind::kForward || gives_input_gradient(kind); }
  Port& port_of(ActionKind kind, StageId stage) {
    return ports_[2 * stage.index() + (kind == ActionKind::kForward ? 0 : 1)];
  }

  void connect(Port& port, ActionKind kind, StageId stage) {
    const StageId giver = kind == ActionKind::kForward ? stage - 1 : stage + 1;
    if (placement_.contains(giver)) {
      const std::size_t microbatches = static_cast<std::size_t>(schedule_.microbatches);
      port.needed = sweeps_.data() + static_cast<std::size_t>(&port_of(kind, giver) - ports_.data()) * microbatches;
      port.delay = placement_.rank_of(giver) < placement_.rank_of(stage) ? 0 : 1;
    }
    const Action send = message_given(placement_, {kind, stage, MicrobatchId(0)});
    if (send.is_idle()) return;
    port.receive = counterpart(send);
    port.target = placement_.rank_of(port.receive.stage()).index();
  }

  // --- the sweep of every action ---

  bool run_action(Dataflow& flow, std::size_t rank, const Action& action) {
    Sweep sweep = clock_[rank] + 1;
    if (has_port(action.kind())) {
      Port& port = port_of(action.kind(), action.stage());
      if (!wait_for_input(port, action, sweep)) return false;
      finish(flow, port, action, sweep, 0);
    } else if (action.is_overlap()) {
      if (!run_halves(flow, action, sweep)) return false;
    }
    clock_[rank] = sweep;
    return true;
  }

  bool run_halves(Dataflow& flow, const Action& overlap, Sweep& sweep) {
    std::uint32_t half = 0;
    bool ready = true;
    for_each_part(overlap, [&](const Action& part) {
      if (has_port(part.kind())) ready = ready && wait_for_input(port_of(part.kind(), part.stage()), part, sweep);
    });
    if (!ready) return false;
    for_each_part(overlap, [&](const Action& part) {
      if (has_port(part.kind())) finish(flow, port_of(part.kind(), part.stage()), part, sweep, half);
      ++half;
    });
    return true;
  }

  /// Raises `sweep` to the first one in which the part's input is available; false if that is not known yet.
  static bool wait_for_input(const Port& port, const Action& part, Sweep& sweep) {
    if (port.needed == nullptr) return true;
    const Sweep there = port.needed[part.microbatch().index()];
    sweep = std::max(sweep, there + port.delay);
    return there != 0;
  }

  void finish(Dataflow& flow, Port& port, const Action& part, Sweep sweep, std::uint32_t half) {
    Sweep& given = port.given[part.microbatch().index()];
    if (given != 0)
      refuse(placement_.rank_of(part.stage()), part, "stands twice, or as B and as I: remove one of them");
    given = sweep;
    if (port.sent == nullptr) return;
    port.sent[port.sent_count++] = {sweep, part.microbatch(), half};
    flow.wake(port.target);
  }

  // --- the lists ---

  void merge(std::size_t rank) {
    std::vector<Arrivals> streams;
    std::size_t size = schedule_.rows[rank].size();
    const auto expect = [&](ActionKind kind, StageId giver) {
      if (!placement_.contains(giver)) return;
      const Port& port = port_of(kind, giver);
      if (port.sent_count == 0 || port.target != rank) return;
      streams.push_back({port.sent, port.sent + port.sent_count, placement_.rank_of(giver).index(), port.receive});
      size += port.sent_count;
    };
    for (const StageId stage : placement_.stages_of(RankId(rank))) {
      expect(ActionKind::kForward, stage - 1);
      expect(ActionKind::kBackward, stage + 1);
      size += port_of(ActionKind::kForward, stage).sent_count + port_of(ActionKind::kBackward, stage).sent_count;
    }
    StreamMerge order;
    for (std::size_t i = 0; i < streams.size(); ++i) order.add(streams[i].next_moment(), i);

    Row merged(size);  // an upper bound of the size, so that a large row is never reallocated
    Action* out = merged.data();
    const auto receive_before = [&](std::uint64_t moment) {
      while (order.next_key() < moment) {
        Arrivals& stream = streams[order.next_stream()];
        *out++ = Action(stream.receive.kind(), stream.receive.stage(), stream.next->microbatch());
        ++stream.next;
        order.advance(stream.next_moment());
      }
    };
    const auto send = [&](const Action& part, const Port& port) {
      const bool forward = part.kind() == ActionKind::kForward;
      if (port.sent == nullptr) return;
      *out++ = Action(forward ? ActionKind::kSendForward : ActionKind::kSendBackward, part.stage(), part.microbatch());
    };
    Sweep sweep = 0;
    for (const Action& action : schedule_.rows[rank]) {
      ++sweep;  // later if the action had to wait
      for_each_part(action, [&](const Action& part) {
        if (has_port(part.kind())) {
          sweep = port_of(part.kind(), part.stage()).given[part.microbatch().index()];
        }
      });
      if (action.is_idle()) continue;
      receive_before(Message(sweep, MicrobatchId(0), 0).moment(rank));
      *out++ = action;
      for_each_part(action, [&](const Action& part) {
        if (has_port(part.kind())) send(part, port_of(part.kind(), part.stage()));
      });
    }
    receive_before(StreamMerge::kDone);
    merged.resize(static_cast<std::size_t>(out - merged.data()));  // idle slots are gone
    schedule_.rows[rank] = std::move(merged);
  }

  [[noreturn]] void refuse(RankId rank, const Action& action, const char* why) const {
    const std::string text = to_text(action);
    const Row& row = schedule_.rows[rank.index()];
    const auto at = std::find(row.begin(), row.end(), action);
    const auto step = static_cast<int>(at - row.begin());
    throw ScheduleError(
        "send_recv: rank " + std::to_string(rank.value) + ", step " + std::to_string(step) + ": " + text + " " + why,
        rank, step, text);
  }

  Schedule& schedule_;
  const Placement& placement_;
  std::vector<Sweep> clock_;
  std::vector<Port> ports_;  // per stage: forward, backward
  std::vector<Sweep> sweeps_;
  std::vector<Message> messages_;
};

void exchange(Schedule& schedule) { Lowering(schedule).run(); }

}  // namespace

extern const detail::Rewrite detail::send_recv_rewrite = {
    .pass = {.name = "send_recv", .summary = "SEND and RECV wherever the next stage lives on another rank"},
    .refuses = kinds_where(is_communication),
    .remedy = "the schedule has communication already: give one without",
    .apply = exchange};

void send_recv(Schedule& schedule) { detail::run(detail::send_recv_rewrite, schedule); }

}  // namespace stagecraft

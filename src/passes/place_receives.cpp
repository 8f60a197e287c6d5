// A simulation gives each action its end time, as if no rank ever waited for a RECV to be posted. A message is one
// event, at the time when its sender reaches the SEND; its RECV goes between the computes of the receiving rank around
// that time. Posted later, the RECV would delay the sender; posted earlier, it would only occupy the fabric. All ranks
// then have computes and messages in the order of one clock (with the same tie-breaking between messages everywhere),
// so no model of communication can deadlock, and each pair of ranks sends and receives in the same order.

#include <algorithm>
#include <tuple>

#include "rewrite.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/dataflow.h"

namespace stagecraft {
namespace {

using Time = std::int64_t;
constexpr Time kNever = -1;

/// A compute takes one unit of time, as in the step simulator; everything else takes none.
Time duration(const Action& action) { return is_compute(action.kind()) ? 1 : 0; }

/// One end of a message, a SEND or a RECV. Both ends have the same time and the same tie-breaker.
struct Message {
  Time time;
  Action send;
  Action here;

  bool operator<(const Message& other) const {
    const auto key = [](const Message& m) {
      return std::tuple(m.time, m.send.kind(), m.send.microbatch(), m.send.stage());
    };
    return key(*this) < key(other);
  }
};

class Placer {
 public:
  explicit Placer(Schedule& schedule)
      : schedule_(schedule),
        forward_sent_(schedule),
        backward_sent_(schedule),
        clock_(schedule.rows.size(), 0),
        ends_(schedule.rows.size()),
        messages_(schedule.rows.size()) {}

  void run() {
    simulate();
    detail::for_each_rank(schedule_, [&](std::size_t r) { rewrite(r); });
  }

 private:
  // --- the clock ---

  void simulate() {
    Dataflow flow(schedule_);
    flow.run([&](std::size_t rank, const Action& action) { return run_action(flow, rank, action); });
    if (const int r = flow.first_blocked(); r >= 0) {
      refuse(static_cast<std::size_t>(r), flow.position()[static_cast<std::size_t>(r)]);
    }
  }

  bool run_action(Dataflow& flow, std::size_t rank, const Action& action) {
    if (action.is_idle() || is_receive(action.kind())) return true;
    Time start = clock_[rank];
    bool blocked = false;
    for_each_part(action, [&](const Action& part) {
      const Time arrival = arrival_of_input(part);
      blocked |= arrival == kNever;
      start = std::max(start, arrival);
    });
    if (blocked) return false;
    clock_[rank] = start + duration(action);
    ends_[rank].push_back(clock_[rank]);
    if (is_send(action.kind())) flow.wake(post(action, rank));
    return true;
  }

  /// When the message that `part` needs is sent: 0 if it needs none, kNever if it is not sent yet.
  [[nodiscard]] Time arrival_of_input(const Action& part) const {
    const Action send = message_needed(schedule_.placement, part);
    if (send.is_idle()) return 0;
    const auto& sent = send.kind() == ActionKind::kSendForward ? forward_sent_ : backward_sent_;
    return sent(send.stage(), send.microbatch()) - 1;
  }

  /// Records both ends of a message. Returns the receiving rank.
  std::size_t post(const Action& send, std::size_t r) {
    auto& sent = send.kind() == ActionKind::kSendForward ? forward_sent_ : backward_sent_;
    sent(send.stage(), send.microbatch()) = clock_[r] + 1;  // 0 means not sent
    const Action receive = counterpart(send);
    const std::size_t peer = schedule_.placement.rank_of(receive.stage()).index();
    messages_[r].push_back({clock_[r], send, send});
    messages_[peer].push_back({clock_[r], send, receive});
    return peer;
  }

  [[noreturn]] void refuse(std::size_t rank, std::size_t step) const {
    const std::string action = to_text(schedule_.rows[rank][step]);
    throw ScheduleError(
        "place_receives: rank " + std::to_string(rank) + ", step " + std::to_string(step) + ": " + action +
            " waits for a message that is never sent: run send_recv before this pass, and check to see why",
        RankId(rank), static_cast<int>(step), action);
  }

  // --- the new rows ---

  void rewrite(std::size_t r) {
    std::vector<Message>& messages = messages_[r];
    std::sort(messages.begin(), messages.end());
    Row placed;
    placed.reserve(schedule_.rows[r].size());
    std::vector<Action> others;  // sharding and reduction since the last compute
    std::size_t message = 0;
    std::size_t timed = 0;
    const auto close_gap = [&](Time before) {
      while (message < messages.size() && messages[message].time < before && is_send(messages[message].here.kind())) {
        placed.push_back(messages[message++].here);
      }
      placed.insert(placed.end(), others.begin(), others.end());
      others.clear();
      while (message < messages.size() && messages[message].time < before) placed.push_back(messages[message++].here);
    };
    for (const Action& action : schedule_.rows[r]) {
      if (action.is_idle() || is_receive(action.kind())) continue;
      const Time end = ends_[r][timed++];
      if (is_send(action.kind())) continue;
      if (is_compute(action.kind())) {
        close_gap(end);
        placed.push_back(action);
      } else {
        others.push_back(action);
      }
    }
    close_gap(INT64_MAX);
    schedule_.rows[r] = std::move(placed);
  }

  Schedule& schedule_;
  StageMicrobatchTable<Time> forward_sent_;
  StageMicrobatchTable<Time> backward_sent_;
  std::vector<Time> clock_;
  std::vector<std::vector<Time>> ends_;  // per action that is neither idle nor a RECV
  std::vector<std::vector<Message>> messages_;
};

void place(Schedule& schedule) { Placer(schedule).run(); }

}  // namespace

extern const detail::Rewrite detail::place_receives_rewrite = {
    .pass = {.name = "place_receives", .summary = "each RECV as late as it delays nobody; safe on every transport"},
    .apply = place};

void place_receives(Schedule& schedule) { detail::run(detail::place_receives_rewrite, schedule); }

}  // namespace stagecraft

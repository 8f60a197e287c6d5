// A posted RECV can occupy a communication fabric that other work needs. This pass delays each RECV until its consumer,
// or until a SEND to the same peer if the peer has the higher rank (one side of each pair must post first). It treats
// each rank by itself, so two messages between the same ranks can be received in another order than they are sent; a
// transport without tags would then mix them up. `place_receives` does not have this flaw.

#include <deque>
#include <unordered_map>

#include "rewrite.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft {
namespace {

class Deferral {
 public:
  Deferral(const Schedule& schedule, std::size_t rank) : schedule_(schedule), rank_(rank) {}

  Row run() {
    const Row& row = schedule_.rows[rank_];
    deferred_.reserve(row.size());
    for (const Action& action : row) {
      if (is_receive(action.kind())) {
        hold(action);
        continue;
      }
      if (is_send(action.kind())) {
        const std::size_t peer = peer_rank(action);
        if (rank_ < peer) release_all_from(peer);
      }
      for_each_part(action, [&](const Action& part) { release_input_of(part); });
      deferred_.push_back(action);
    }
    if (!held_.empty()) refuse_leftover();
    return std::move(deferred_);
  }

 private:
  static std::uint64_t key(const Action& receive) {
    const std::uint64_t id = std::uint64_t{static_cast<std::uint32_t>(receive.stage().value)} << 32 |
                             static_cast<std::uint32_t>(receive.microbatch().value);
    return receive.kind() == ActionKind::kRecvForward ? id : ~id;
  }

  [[nodiscard]] std::size_t peer_rank(const Action& message) const {
    return schedule_.placement.rank_of(peer_stage(message)).index();
  }

  void hold(const Action& receive) {
    if (held_.emplace(key(receive), receive).second) by_peer_[peer_rank(receive)].push_back(receive);
  }

  void release(const Action& receive) {
    if (held_.erase(key(receive)) > 0) deferred_.push_back(receive);
  }

  void release_all_from(std::size_t peer) {
    const auto receives = by_peer_.find(peer);
    if (receives == by_peer_.end()) return;
    for (const Action& receive : receives->second) release(receive);  // skips those released before
    receives->second.clear();
  }

  void release_input_of(const Action& part) {
    if (part.kind() == ActionKind::kForward) {
      release({ActionKind::kRecvForward, part.stage(), part.microbatch()});
    } else if (gives_input_gradient(part.kind())) {
      release({ActionKind::kRecvBackward, part.stage(), part.microbatch()});
    }
  }

  [[noreturn]] void refuse_leftover() const {
    const Row& row = schedule_.rows[rank_];
    for (std::size_t step = 0; step < row.size(); ++step) {
      if (!is_receive(row[step].kind()) || !held_.contains(key(row[step]))) continue;
      throw ScheduleError("defer_receives: rank " + std::to_string(rank_) + ", step " + std::to_string(step) + ": " +
                              to_text(row[step]) + " is received but never used after it: remove it, or add its F or B",
                          RankId(rank_), static_cast<int>(step), to_text(row[step]));
    }
    throw InternalError("defer_receives: a held receive is not in its row");
  }

  const Schedule& schedule_;
  std::size_t rank_;
  Row deferred_;
  std::unordered_map<std::uint64_t, Action> held_;
  std::unordered_map<std::size_t, std::deque<Action>> by_peer_;
};

void defer(Schedule& schedule) {
  detail::for_each_rank(schedule, [&](std::size_t r) { schedule.rows[r] = Deferral(schedule, r).run(); });
}

}  // namespace

extern const detail::Rewrite detail::defer_receives_rewrite = {
    .pass = {.name = "defer_receives", .summary = "each RECV just before its consumer; needs a transport with tags"},
    .apply = defer};

void defer_receives(Schedule& schedule) { detail::run(detail::defer_receives_rewrite, schedule); }

}  // namespace stagecraft

#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "stagecraft/runtime/world.h"
#include "stagecraft/transport/local.h"
#include "support/forwarding_channel.h"

/// Ranks as threads with simulated clocks, so that measured times do not depend on the machine. A message takes no
/// time, and is never received before it was sent.
namespace stagecraft {

class SimulatedClocks {
 public:
  explicit SimulatedClocks(int ranks) : now_(static_cast<std::size_t>(ranks)), settled_(now_.size()) {}

  [[nodiscard]] double now(RankId rank) const {
    const std::lock_guard lock(mutex_);
    return now_[rank.index()];
  }
  void advance(RankId rank, double seconds) {
    const std::lock_guard lock(mutex_);
    now_[rank.index()] += seconds;
  }

 private:
  friend class SimulatedTimeChannel;

  void wait_until(RankId rank, double time) { now_[rank.index()] = std::max(now_[rank.index()], time); }

  mutable std::mutex mutex_;
  std::vector<double> now_;
  std::vector<double> settled_;                                    // when each rank came to the end of the step
  double verdict_ = 0;                                             // when rank 0 knew that all had
  std::optional<std::uint64_t> judged_;                            // of which step that is
  std::map<std::tuple<int, int, Tag>, std::vector<double>> sent_;  // by sender, receiver and tag; oldest first
};

class SimulatedTimeChannel : public ForwardingChannel {
 public:
  SimulatedTimeChannel(std::unique_ptr<Channel> below, SimulatedClocks& clocks)
      : ForwardingChannel(std::move(below)), clocks_(clocks) {}

  [[nodiscard]] double now() const override { return clocks_.now(rank()); }

  void send(RankId to, const Tag& tag, Message message, std::uint64_t step) override {
    {
      const std::lock_guard lock(clocks_.mutex_);
      clocks_.sent_[{rank().value, to.value, tag}].push_back(clocks_.now_[rank().index()]);
    }
    ForwardingChannel::send(to, tag, std::move(message), step);
  }
  std::optional<Message> take(RankId from, const Tag& tag) override {
    std::optional<Message> message = ForwardingChannel::take(from, tag);
    if (!message) return message;
    const std::lock_guard lock(clocks_.mutex_);
    std::vector<double>& sent = clocks_.sent_.at({from.value, rank().value, tag});
    clocks_.wait_until(rank(), sent.front());
    sent.erase(sent.begin());
    return message;
  }
  void end_step(std::uint64_t next, bool failed) override {
    ForwardingChannel::end_step(next, failed);
    const std::lock_guard lock(clocks_.mutex_);
    clocks_.wait_until(rank(), clocks_.verdict_);
  }
  void tell(RankId to, const Notice& notice) override {
    {
      const std::lock_guard lock(clocks_.mutex_);
      double& now = clocks_.now_[rank().index()];
      if (notice.kind == Notice::Kind::kSettle) clocks_.settled_[rank().index()] = now;
      if (notice.kind == Notice::Kind::kVerdict && clocks_.judged_ != notice.step) {
        clocks_.judged_ = notice.step;
        now = std::max(now, *std::max_element(clocks_.settled_.begin(), clocks_.settled_.end()));
        clocks_.verdict_ = now;
      }
    }
    ForwardingChannel::tell(to, notice);
  }

 private:
  SimulatedClocks& clocks_;
};

inline void run_in_simulated_time(int ranks, Timeout timeout,
                                  const std::function<void(World&, SimulatedClocks&)>& program) {
  LocalFabric fabric(ranks);
  SimulatedClocks clocks(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const auto transport =
          std::make_shared<Transport>(std::make_unique<SimulatedTimeChannel>(fabric.channel(RankId(r)), clocks));
      World world(transport, at::kCPU, timeout);
      program(world, clocks);
      transport->depart();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace stagecraft

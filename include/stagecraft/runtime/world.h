#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/schedule/action.h"
#include "stagecraft/transport/transport.h"

/// The ranks of one program, and how to start them.
namespace stagecraft {

/// What a rank is doing right now, for messages about it from any thread.
class Activity {
 public:
  /// None: nothing of a schedule.
  void set(const std::optional<Action>& action) {
    const std::lock_guard lock(mutex_);
    action_ = action;
  }
  [[nodiscard]] std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::optional<Action> action_;
};

/// One rank's view. All collectives are called by all ranks in the same order.
class World {
 public:
  World(std::shared_ptr<Transport> transport, at::Device device, Timeout timeout,
        std::shared_ptr<Activity> activity = std::make_shared<Activity>());

  [[nodiscard]] RankId rank() const { return transport_->rank(); }
  [[nodiscard]] int size() const { return transport_->ranks(); }
  [[nodiscard]] bool is_first() const { return rank().value == 0; }
  [[nodiscard]] bool is_last() const { return rank().value + 1 == size(); }
  [[nodiscard]] at::Device device() const { return device_; }
  [[nodiscard]] Timeout timeout() const { return timeout_; }
  [[nodiscard]] Transport& transport() const { return *transport_; }

  /// Ends a step on all ranks; see Transport::settle.
  std::optional<Failure> settle();
  void barrier();
  /// Every rank gets the message of rank `from`; it is not used elsewhere.
  Message broadcast(Message message, RankId from);
  /// Rank `to` gets the messages of all ranks, its own included, by rank; the others get nothing.
  std::vector<Message> collect(Message own, RankId to);
  /// What every rank said, by rank.
  std::vector<std::string> gather(const std::string& own);

  [[nodiscard]] Activity& activity() const { return *activity_; }

 private:
  Tag next_tag();

  std::shared_ptr<Transport> transport_;
  at::Device device_;
  Timeout timeout_;
  std::int32_t collectives_ = 0;
  std::shared_ptr<Activity> activity_;
};

enum class WorldKind {
  kAuto,     ///< Processes when an MPI launcher has started this one, else threads.
  kThreads,  ///< All ranks in this process.
  kMpi,      ///< This process is one rank.
};

struct LaunchOptions {
  /// Ranks as threads of this process; under MPI there are as many as the launcher has started.
  int ranks = 1;
  /// The flag --stagecraft-world=threads or --stagecraft-world=mpi on the command line overrides it.
  WorldKind world = WorldKind::kAuto;
  /// Threads inside one operation, per rank; 0: the cores divided by the ranks. Sums may differ in their last bit
  /// between different numbers.
  int threads_per_rank = 0;
  /// Where ranks compute. Of several devices each rank takes the one of its place among the ranks on its host, round
  /// robin.
  at::DeviceType device_type = at::kCPU;
  /// Where rank r computes, instead.
  std::function<at::Device(RankId)> device = {};
  /// The longest that a rank waits for another.
  Timeout timeout = std::chrono::minutes(5);
};

/// Runs `program` once per rank, each in a thread of its own with its share of the cores, and waits for all. The first
/// failure of a rank ends the waiting of the others and is thrown when all have ended.
void run_ranks(const LaunchOptions& options, const std::function<void(World&)>& program);

/// The body of `main`: runs the program on the ranks of the world that `options` and the command line ask for, and
/// prints a failure to stderr. Returns the exit code: 0, or 1 after a failure on any rank. The command line keeps its
/// flags; those that begin with --stagecraft- are for this function.
int launch(int argc, char** argv, const LaunchOptions& options, const std::function<void(World&)>& program);

}  // namespace stagecraft

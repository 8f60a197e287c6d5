#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/schedule/action.h"
#include "stagecraft/transport/group.h"
#include "stagecraft/transport/transport.h"

/// The ranks of one program.
namespace stagecraft {

/// What a rank is doing, for error messages; used from any thread.
class Activity {
 public:
  /// None: not inside a schedule.
  void set(const std::optional<Action>& action) {
    const std::lock_guard lock(mutex_);
    action_ = action;
  }
  [[nodiscard]] std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::optional<Action> action_;
};

/// One rank's view of its pipeline and of the other replicas of that pipeline. Rank p of replica r has the number p *
/// replicas + r in the world.
class World {
 public:
  /// All ranks make it, with the same number of replicas, which must divide the number of ranks (otherwise
  /// InvalidArgument).
  World(std::shared_ptr<Transport> transport, at::Device device, Timeout timeout, int replicas = 1,
        std::shared_ptr<Activity> activity = std::make_shared<Activity>());
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// This rank in the pipeline.
  [[nodiscard]] RankId rank() const { return RankId(pipeline_->place()); }
  /// Ranks of the pipeline.
  [[nodiscard]] int size() const { return pipeline_->size(); }
  [[nodiscard]] bool is_first() const { return rank().value == 0; }
  [[nodiscard]] bool is_last() const { return rank().value + 1 == size(); }
  [[nodiscard]] int replica() const { return peers_->place(); }
  [[nodiscard]] int replicas() const { return peers_->size(); }
  /// This rank in the whole world.
  [[nodiscard]] RankId world_rank() const { return RankId(everyone_->place()); }
  /// "rank 3"; with replicas, "rank 3 (rank 1 of replica 1)".
  [[nodiscard]] std::string name() const;

  [[nodiscard]] at::Device device() const { return device_; }
  [[nodiscard]] Timeout timeout() const { return timeout_; }
  /// The transport between all ranks of the world.
  [[nodiscard]] Transport& transport() const { return *transport_; }
  [[nodiscard]] Activity& activity() const { return *activity_; }

  /// All ranks of the world, by rank.
  [[nodiscard]] Group& everyone() { return *everyone_; }
  /// The ranks of this pipeline, by rank.
  [[nodiscard]] Group& pipeline() { return *pipeline_; }
  /// The ranks of this pipeline as ranks of the world.
  [[nodiscard]] const std::vector<RankId>& pipeline_ranks() const { return pipeline_->members(); }
  /// The ranks with the same stages, by replica.
  [[nodiscard]] Group& peers() { return *peers_; }
  /// Another group of the peers, for another thread. All ranks of the world call it in the same order. `name` is for
  /// errors.
  [[nodiscard]] std::unique_ptr<Group> more_peers(std::string name = {});

  /// A group of some ranks of this pipeline, in this order; null on ranks that are not members. All ranks of the world
  /// call it in the same order.
  [[nodiscard]] std::unique_ptr<Group> some_of_pipeline(const std::vector<RankId>& ranks, std::string name = {});

  /// This replica's rows (dimension 0) of a batch: rows are divided as evenly as possible, in the order of replicas.
  [[nodiscard]] at::Tensor share_of(const at::Tensor& batch) const;

 private:
  std::shared_ptr<Transport> transport_;
  at::Device device_;
  Timeout timeout_;
  std::unique_ptr<Group> everyone_;
  std::unique_ptr<Group> pipeline_;
  std::unique_ptr<Group> peers_;
  std::shared_ptr<Activity> activity_;
};

}  // namespace stagecraft

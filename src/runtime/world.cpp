#include "stagecraft/runtime/world.h"

#include <algorithm>
#include <numeric>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/stage/microbatches.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {

namespace {

/// `count` ranks from `first` on, `stride` apart.
std::vector<RankId> every(int first, int stride, int count) {
  std::vector<RankId> ranks;
  for (int i = 0; i < count; ++i) ranks.emplace_back(first + stride * i);
  return ranks;
}

std::shared_ptr<Transport> divisible(std::shared_ptr<Transport> transport, int replicas) {
  if (replicas < 1) throw InvalidArgument("there is at least 1 replica, got " + std::to_string(replicas));
  if (transport->ranks() % replicas != 0) {
    throw InvalidArgument(std::to_string(transport->ranks()) + " ranks cannot be divided among " +
                          std::to_string(replicas) + " replicas: start a multiple of " + std::to_string(replicas));
  }
  return transport;
}

}  // namespace

World::World(std::shared_ptr<Transport> transport, at::Device device, Timeout timeout, int replicas,
             std::shared_ptr<Activity> activity)
    : transport_(divisible(std::move(transport), replicas)),
      device_(with_index(device)),
      timeout_(timeout),
      everyone_(transport_->make_group(every(0, 1, transport_->ranks()), timeout, "world.everyone()")),
      pipeline_(
          transport_->make_group(every(transport_->rank().value % replicas, replicas, transport_->ranks() / replicas),
                                 timeout, "world.pipeline()")),
      peers_(transport_->make_group(every(transport_->rank().value / replicas * replicas, 1, replicas), timeout,
                                    "world.peers()")),
      activity_(std::move(activity)) {}

std::string World::name() const {
  const std::string own = "rank " + std::to_string(world_rank().value);
  return replicas() == 1
             ? own
             : own + " (rank " + std::to_string(rank().value) + " of replica " + std::to_string(replica()) + ")";
}

std::unique_ptr<Group> World::more_peers(std::string name) {
  return transport_->make_group(peers_->members(), timeout_, std::move(name));
}

std::unique_ptr<Group> World::some_of_pipeline(const std::vector<RankId>& ranks, std::string name) {
  std::vector<RankId> members;
  for (const RankId member : ranks) members.push_back(pipeline_ranks()[member.index()]);
  return transport_->make_group(members, timeout_, std::move(name));
}

at::Tensor World::share_of(const at::Tensor& batch) const {
  const std::vector<std::int64_t> rows = even_sizes(batch.size(0), replicas());
  const std::int64_t begin = std::accumulate(rows.begin(), rows.begin() + replica(), std::int64_t{0});
  return batch.narrow(0, begin, rows[static_cast<std::size_t>(replica())]);
}

std::string Activity::text() const {
  const std::lock_guard lock(mutex_);
  return action_ ? to_text(*action_) : "";
}

}  // namespace stagecraft

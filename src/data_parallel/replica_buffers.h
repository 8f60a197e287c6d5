#pragma once

#include <vector>

#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/group.h"

namespace stagecraft {

/// Sets parameters and buffers of the stages to those of replica 0.
void make_stages_equal(Group& peers, const std::vector<Stage>& stages);

/// Keeps the buffers of stages, such as running statistics, as replica 0 has them.
class ReplicaBuffers {
 public:
  /// Both must outlive it.
  ReplicaBuffers(Group& peers, const std::vector<Stage>& stages)
      : peers_(peers), stages_(stages), sent_(stages.size()) {}

  /// Replica 0 broadcasts the buffers of a stage that have changed since the last time. Their values are compared,
  /// because kernels update statistics without changing the version counter, and so does a module that writes to
  /// `buffer.data`, and the replay of a graph. For that comparison the host waits for the device.
  void spread(std::size_t stage);

 private:
  Group& peers_;
  const std::vector<Stage>& stages_;
  std::vector<std::vector<at::Tensor>> sent_;  // by stage
};

}  // namespace stagecraft

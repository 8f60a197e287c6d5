#pragma once

#include <algorithm>

#include "problem.h"

namespace stagecraft::detail {

/// Computes arrival times of messages. A directed link transfers one message at a time, in the order of sending.
class Links {
 public:
  explicit Links(const Problem& problem) : problem_(problem), free_(problem.links) {}

  void reset() { std::fill(free_.begin(), free_.end(), 0.0); }

  /// Arrival time of a message that stage `s` sends to the next stage at `time`.
  double up(std::size_t s, double time) {
    return travel(problem_.link_up[s], problem_.transfer_up[s], time) + problem_.hop_up[s];
  }
  /// Arrival time of a message that stage `s` sends to the previous stage at `time`.
  double down(std::size_t s, double time) {
    return travel(problem_.link_down[s], problem_.transfer_down[s], time) + problem_.hop_down[s];
  }

 private:
  /// When the link begins to transfer the message; occupies the link until the transfer ends.
  double travel(int link, double transfer, double time) {
    if (transfer == 0) return time;
    double& free = free_[static_cast<std::size_t>(link)];
    const double sent = std::max(free, time);
    free = sent + transfer;
    return sent;
  }

  const Problem& problem_;
  std::vector<double> free_;
};

}  // namespace stagecraft::detail

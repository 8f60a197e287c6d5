#pragma once

#include <algorithm>

#include "problem.h"

namespace stagecraft::detail {

/// When messages arrive: those of one directed link share its bandwidth, in the order in which they are sent.
class Links {
 public:
  explicit Links(const Problem& problem) : problem_(problem), free_(problem.links) {}

  void reset() { std::fill(free_.begin(), free_.end(), 0.0); }

  /// Arrival time of a message that stage `s` sends to the next stage at `time`.
  double up(std::size_t s, double time) {
    return travel(problem_.link_up[s], problem_.transfer_up[s], time) + problem_.hop_up[s];
  }
  /// ... and to the one before.
  double down(std::size_t s, double time) {
    return travel(problem_.link_down[s], problem_.transfer_down[s], time) + problem_.hop_down[s];
  }

 private:
  /// By how much the link delays the message beyond its hop.
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

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft {

/// When the gradients of a stage were reduced over the replicas, from the time when all replicas had started it; in
/// seconds of the steady clock.
struct ReductionRecord {
  std::size_t stage;
  double start;
  double end;
  double waited;  ///< How much of that time the end of the step waited.
  std::int64_t bytes;
};

/// Notes how much of each reduction a wait that began then has waited for.
inline void note_wait(std::vector<ReductionRecord>& records, double since) {
  for (ReductionRecord& record : records) record.waited = std::max(0.0, record.end - std::max(record.start, since));
}

}  // namespace stagecraft

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft {

/// What ran beside the schedule for a stage; in seconds of the steady clock.
struct BesideRecord {
  enum class Kind { kReduction, kUnshard };

  Kind kind;
  std::size_t stage;
  double start;  ///< A reduction starts when all replicas have called it.
  double end;
  double waited;  ///< How much of that time the schedule waited for it.
  std::int64_t bytes;
};

/// Notes how much of each reduction a wait for all of them, which began then, has waited for.
inline void note_wait(std::vector<BesideRecord>& records, double since) {
  for (BesideRecord& record : records) {
    if (record.kind != BesideRecord::Kind::kReduction) continue;
    record.waited = std::max(0.0, record.end - std::max(record.start, since));
  }
}

}  // namespace stagecraft

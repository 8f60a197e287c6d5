#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "stagecraft/schedule/timeline.h"

/// Pictures of what really happened, in real time. All take one timeline per rank.
namespace stagecraft {

struct TimelineSummary {
  double seconds = 0;        ///< From the first beginning to the last end.
  std::vector<double> busy;  ///< Per rank: seconds of computing, waits left out.
  /// The part of all ranks' time in which they do not compute.
  [[nodiscard]] double idle() const;
};
TimelineSummary summarize(const std::vector<Timeline>& ranks);

/// One row per rank, time to the right in milliseconds. Self-contained.
void write_timeline_svg(std::ostream& out, const std::vector<Timeline>& ranks, const std::string& name);

/// Trace-event JSON, one process per rank. Opens in Perfetto.
void write_timeline_trace(std::ostream& out, const std::vector<Timeline>& ranks, const std::string& name);

}  // namespace stagecraft

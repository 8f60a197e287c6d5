#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/schedule/timeline.h"

/// Pictures of what really happened, in real time, and its file form.
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

/// Trace-event JSON, one process per rank. Opens in Perfetto, and holds everything that was recorded, to the
/// nanosecond: `parse_timeline_trace` reads it back.
void write_timeline_trace(std::ostream& out, const Recording& recording);
/// The same for a single step.
void write_timeline_trace(std::ostream& out, const std::vector<Timeline>& ranks, const std::string& name);

/// What `write_timeline_trace` wrote; times begin with 0. Events of other kinds are left out, so that a trace may have
/// been added to. Throws InvalidArgument that names the event and its key, all mistakes at once.
Recording parse_timeline_trace(std::string_view json);

}  // namespace stagecraft

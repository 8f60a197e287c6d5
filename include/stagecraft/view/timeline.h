#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/schedule/timeline.h"

/// Pictures of recorded timelines, and their file format.
namespace stagecraft {

struct TimelineSummary {
  double seconds = 0;        ///< From the earliest start to the latest end.
  std::vector<double> busy;  ///< Per rank: seconds of compute, without waits; see `own_times`.
  /// The fraction of all ranks' time in which they do not compute.
  [[nodiscard]] double idle() const;
};
TimelineSummary summarize(const std::vector<Timeline>& ranks);

/// One row per rank, time to the right in milliseconds. Self-contained.
void write_timeline_svg(std::ostream& out, const std::vector<Timeline>& ranks, const std::string& name);

/// Trace-event JSON, one process per rank. Opens in Perfetto, and keeps all recorded data to the nanosecond, so that
/// `parse_timeline_trace` can read it back.
void write_timeline_trace(std::ostream& out, const Recording& recording);
/// The same for a single step.
void write_timeline_trace(std::ostream& out, const std::vector<Timeline>& ranks, const std::string& name);

/// Parses what `write_timeline_trace` wrote; times start at 0. Ignores other events, which may have been added to the
/// trace. Throws InvalidArgument that lists all mistakes, each with its event and key.
Recording parse_timeline_trace(std::string_view json);

}  // namespace stagecraft

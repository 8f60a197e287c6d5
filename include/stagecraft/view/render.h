#pragma once

#include <cstdint>
#include <iosfwd>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/table.h"

/// Pictures of a schedule, besides the table of `schedule/table.h`. All writers draw the slots as they stand;
/// `as_drawn` first puts them on a common clock. They write as they go, a row at most in memory; whether the stream
/// took it is the caller's to check. The schedule's name may be any bytes: it is escaped, and what is not UTF-8
/// replaced.
namespace stagecraft {

/// The schedule with its slots on a common clock: itself when its rows already are a timetable, else as the step
/// simulator runs it. A schedule that cannot run is returned as it is, so that it can still be looked at. Throws
/// InvalidArgument when the timetable would have more than kMaxSlots slots.
Schedule as_drawn(const Schedule& schedule);

/// Most cells (ranks times steps) `write_svg` draws; browsers give up not far above.
inline constexpr std::int64_t kMaxSvgCells = 200'000;

/// One row per rank, time to the right: colour for the kind, shade for the stage, the microbatch as a number, idle
/// slots hatched, a legend. Self-contained, with its own background. Throws InvalidArgument above kMaxSvgCells, before
/// writing.
void write_svg(std::ostream& out, const Schedule& schedule);

/// Trace-event JSON, one process per rank, one microsecond per slot, arrows from SEND to RECV. Opens in Perfetto.
/// Besides a row it holds some bytes per message.
void write_trace(std::ostream& out, const Schedule& schedule);

/// {"name", "ranks", "stages", "microbatches", "placement": [rank of stage], "rows": [["0F0", null, ...], ...]}
void write_json(std::ostream& out, const Schedule& schedule);

}  // namespace stagecraft

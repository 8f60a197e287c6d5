#pragma once

#include <cstdint>
#include <iosfwd>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/table.h"
#include "stagecraft/sim/simulator.h"

/// Pictures of a schedule, besides the table of `schedule/table.h`. They are written incrementally, with at most one
/// row in memory; the caller checks the stream for errors. The schedule's name may be any bytes: it is escaped, and
/// invalid UTF-8 is replaced.
namespace stagecraft {

// --- slots: slot i of each row is drawn at time i; call `as_drawn` first to put the slots on a common clock ---

/// The schedule with its slots on a common clock: unchanged if it is a timetable already, else with the steps of the
/// step simulator. A schedule that cannot run is returned unchanged, so that it can still be drawn. Throws
/// InvalidArgument when the timetable would have more than kMaxSlots slots.
Schedule as_drawn(const Schedule& schedule);

/// Most cells (ranks times steps) that `write_svg` draws; browsers fail not far above.
inline constexpr std::int64_t kMaxSvgCells = 200'000;

/// One row per rank, time to the right: colour for the kind, shade for the stage, the microbatch as a number, idle
/// slots hatched, a legend. Self-contained, with its own background. Throws InvalidArgument above kMaxSvgCells, before
/// writing.
void write_svg(std::ostream& out, const Schedule& schedule);

/// Trace-event JSON, one process per rank, one microsecond per slot, arrows from SEND to RECV. Opens in Perfetto.
/// Holds a row and some bytes per message in memory.
void write_trace(std::ostream& out, const Schedule& schedule);

/// {"name", "ranks", "stages", "microbatches", "placement": [rank of stage], "rows": [["0F0", null, ...], ...]}
void write_json(std::ostream& out, const Schedule& schedule);

// --- simulated times ---

/// Draws one row per rank, time to the right, with the memory of the rank below each row; the dashed line is the
/// largest peak of all ranks. Needs a simulation with `keep_times` and `keep_memory`. Self-contained. Throws
/// InvalidArgument above kMaxSvgCells actions, before writing.
void write_simulation_svg(std::ostream& out, const Schedule& schedule, const Simulation& simulation);

/// Trace-event JSON, one process per rank, a counter for its memory; one unit of time is one microsecond. Opens in
/// Perfetto.
void write_simulation_trace(std::ostream& out, const Schedule& schedule, const Simulation& simulation);

}  // namespace stagecraft

#pragma once

#include <iosfwd>

#include "stagecraft/sim/simulator.h"

namespace stagecraft {

/// Draws one row per rank, time to the right, with the memory of the rank below each row; the dashed line is the
/// largest peak of all ranks. Needs a simulation with `keep_times` and `keep_memory`. Self-contained. Throws
/// InvalidArgument above kMaxSvgCells actions, before writing.
void write_simulation_svg(std::ostream& out, const Schedule& schedule, const Simulation& simulation);

/// Trace-event JSON, one process per rank, a counter for its memory; one unit of time is one microsecond. Opens in
/// Perfetto.
void write_simulation_trace(std::ostream& out, const Schedule& schedule, const Simulation& simulation);

}  // namespace stagecraft

// Pictures of schedules.

#include <sstream>

#include "functions.h"
#include "stagecraft/core/text.h"
#include "stagecraft/sim/step_simulator.h"
#include "stagecraft/view/render.h"

namespace stagecraft::python {
namespace {

Schedule aligned(const Schedule& schedule, const std::string& align) {
  if (align == "auto") return as_drawn(schedule);
  if (align == "steps") return spread_over_steps(schedule, simulate_steps(schedule));
  if (align == "slots") return schedule;
  throw InvalidArgument("align: got " + in_quotes(align) + ", expected auto, slots or steps");
}

}  // namespace

/// `format` is "table", "svg", "trace" or "json"; the table takes colour and width too.
Object schedule_picture(const Arguments& args) {
  const auto& schedule = args.value<Schedule>(0, "schedule");
  const std::string format = args.text(1, "format");
  const std::string align = args.text(2, "align");
  TableOptions options;
  options.colour = args.flag(3, "colour");
  options.width = args.integer(4, "width");
  if (options.width < 0) throw InvalidArgument("width: got " + std::to_string(options.width) + ", must be 0 or more");
  std::ostringstream out;
  without_gil([&] {
    const Schedule drawn = aligned(schedule, align);
    if (format == "svg") {
      write_svg(out, drawn);
    } else if (format == "trace") {
      write_trace(out, drawn);
    } else if (format == "json") {
      write_json(out, drawn);
    } else {
      write_table(out, drawn.rows, options);
    }
  });
  return to_python(std::string_view(out.str()));
}

}  // namespace stagecraft::python

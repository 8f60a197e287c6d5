#pragma once

#include <vector>

#include "objects.h"
#include "stagecraft/runtime/options.h"
#include "stagecraft/runtime/schedule_choice.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft::python {

/// The options of a pipeline from a dict; stagecraft/torch/_options.py has its entries and its defaults. What Python
/// objects they need go into `keep`.
PipelineOptions options_from(const py::dict& given, py::list& keep);

/// ("name", name or path) or ("csv", text of a CSV file, name).
ScheduleChoice choice_from(const py::handle& given);
/// A schedule from the text of a CSV file.
Schedule schedule_from(const std::string& csv, const std::string& name);
/// The actions of every rank, as text.
py::list rows_of(const Schedule& schedule);

}  // namespace stagecraft::python

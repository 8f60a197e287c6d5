#pragma once

#include <string>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

/// Schedules in files.
namespace stagecraft {

/// Whether an argument that names a schedule or a file is a file: it ends in ".csv".
bool is_schedule_file(std::string_view name);

/// Throws InvalidArgument when the file cannot be read, ParseError when it is not CSV of actions, ScheduleError as
/// Schedule::from_rows does.
Schedule read_schedule(const std::string& path);

}  // namespace stagecraft

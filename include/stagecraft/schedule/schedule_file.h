#pragma once

#include <string>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

/// Schedules in files.
namespace stagecraft {

/// Where a name of a schedule may stand, a path that ends in .csv is a file.
bool is_schedule_file(std::string_view name);

/// Throws InvalidArgument when it cannot be read, ParseError when it is no schedule.
Schedule read_schedule(const std::string& path);

}  // namespace stagecraft

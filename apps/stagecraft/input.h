#pragma once

#include <string>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::cli {

/// The name of an input in messages: its path, or "<stdin>" for "-".
std::string source_name(const std::string& path);

/// Reads the rows of a CSV file, or of standard input for "-", in blocks, so that endless input is refused at its first
/// bad cell. Throws Failure when the input cannot be read or is empty, ParseError when it is not a schedule.
std::vector<Row> read_rows(const std::string& path);

/// Reads rows and makes a schedule of them, named after the file. Throws as `read_rows`, and ScheduleError.
Schedule read_schedule(const std::string& path);

/// Reads a whole text file, or standard input for "-". Throws Failure when it cannot be read or has more than 64 MiB.
std::string read_text(const std::string& path);

/// The name of a schedule read from `path`: the file name without folder and extension.
std::string schedule_name(const std::string& path);

}  // namespace stagecraft::cli

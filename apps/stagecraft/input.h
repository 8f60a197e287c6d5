#pragma once

#include <string>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::cli {

/// How messages call an input: its path, or "<stdin>" for "-".
std::string source_name(const std::string& path);

/// The rows of a CSV file, or of standard input for "-". Read in blocks, so that endless input ends at its first bad
/// cell. Throws Failure when it cannot be read or is empty, ParseError when it is not a schedule.
std::vector<Row> read_rows(const std::string& path);

/// As above, with stages and microbatches worked out and named after the file. Throws ScheduleError too.
Schedule read_schedule(const std::string& path);

/// All of another text file, or of standard input for "-". Throws Failure when it cannot be read or has more than 64
/// MiB.
std::string read_text(const std::string& path);

/// The name a schedule read from `path` gets: the file's without folder and extension.
std::string schedule_name(const std::string& path);

}  // namespace stagecraft::cli

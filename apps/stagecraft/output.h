#pragma once

#include <functional>
#include <iosfwd>
#include <string>

/// Where the commands write: standard output, devices, and files that appear complete or not at all.
namespace stagecraft::cli {

/// Calls `write` with a stream to `path`; "-" is standard output.
///
/// For a file, a temporary file is written and renamed, with the mode and owner of the file it replaces. Follows
/// symbolic links. Writes directly to anything that is not a regular file (a device, a FIFO). Throws Failure at the
/// first write that fails, and passes on what `write` throws; a file is then unchanged.
void write_output(const std::string& path, const std::function<void(std::ostream&)>& write);

/// Whether the output is standard output and a terminal.
bool is_terminal(const std::string& path);

}  // namespace stagecraft::cli

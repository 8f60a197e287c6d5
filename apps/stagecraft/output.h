#pragma once

#include <functional>
#include <iosfwd>
#include <string>

namespace stagecraft::cli {

/// Calls `write` with a stream to `path`; "-" is standard output.
///
/// A file appears complete or not at all: it is written beside its place and moved there, with the mode and the owner
/// of the file it replaces. Symbolic links are followed. What is no ordinary file (a device, a FIFO) is written
/// directly. Throws Failure at the first byte that cannot be written, and passes on what `write` throws; the target is
/// then as before.
void write_output(const std::string& path, const std::function<void(std::ostream&)>& write);

/// Whether this output is the terminal.
bool is_terminal(const std::string& path);

}  // namespace stagecraft::cli

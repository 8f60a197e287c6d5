#pragma once

#include <string>

#include <fmt/format.h>

#include "failure.h"
#include "input.h"
#include "printable.h"
#include "stagecraft/core/error.h"

namespace stagecraft::cli {

/// What `parse` makes of a file, or of standard input for "-". Its InvalidArgument, a line per problem, becomes a
/// Failure that begins with the file: one line for the first problem, the others below it.
template <typename Parse>
auto read_parsed(const std::string& path, Parse&& parse) {
  try {
    return parse(read_text(path));
  } catch (const InvalidArgument& error) {
    std::string line = error.what();
    std::string details;
    if (const std::size_t end = line.find('\n'); end != std::string::npos) {
      details = printable_lines(line.substr(end + 1)) + "\n";  // keys are whatever the file says
      line.resize(end);
    }
    throw Failure(kUnusable, fmt::format("{}: {}", source_name(path), line), details);
  }
}

}  // namespace stagecraft::cli

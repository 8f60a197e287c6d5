#pragma once

#include <string>

#include <fmt/format.h>

#include "failure.h"
#include "input.h"
#include "printable.h"
#include "stagecraft/core/error.h"

namespace stagecraft::cli {

/// Parses a file, or standard input for "-". An InvalidArgument of `parse`, with one line per problem, becomes a
/// Failure that names the file: the first problem is its line, the others are details.
template <typename Parse>
auto read_parsed(const std::string& path, Parse&& parse) {
  try {
    return parse(read_text(path));
  } catch (const InvalidArgument& error) {
    std::string line = error.what();
    std::string details;
    if (const std::size_t end = line.find('\n'); end != std::string::npos) {
      details = printable_lines(line.substr(end + 1)) + "\n";  // keys come from the file and may hold any bytes
      line.resize(end);
    }
    throw Failure(kUnusable, fmt::format("{}: {}", source_name(path), line), details);
  }
}

}  // namespace stagecraft::cli

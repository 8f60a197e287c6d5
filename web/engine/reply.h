#pragma once

#include <string>
#include <vector>

#include "report_text.h"

namespace stagecraft::page {

/// What a call returns: a text, and numbers that would be slow to write as text. `mark` names a range of the numbers,
/// so that the page finds it under "arrays" of the text.
struct Reply {
  cli::Json json = cli::Json::object();
  std::vector<double> numbers;

  /// Names what was added to `numbers` since `begin`.
  void mark(const std::string& name, std::size_t begin) { json["arrays"][name] = {begin, numbers.size()}; }
};

}  // namespace stagecraft::page

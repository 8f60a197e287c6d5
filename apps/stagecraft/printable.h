#pragma once

#include <string>
#include <string_view>

namespace stagecraft::cli {

/// Makes text, such as a file name, safe for a one-line message, JSON and SVG: control characters and bytes that are
/// not UTF-8 become \xNN.
std::string printable(std::string_view text);

/// The same for text of several lines; keeps the line ends.
std::string printable_lines(std::string_view text);

}  // namespace stagecraft::cli

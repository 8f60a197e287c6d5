#pragma once

#include <string>
#include <string_view>

namespace stagecraft::cli {

/// The text as it may stand in a one-line message, in JSON and in SVG: control characters and bytes that are not UTF-8
/// become \xNN. File names and arguments hold anything; a terminal and a parser do not take anything.
std::string printable(std::string_view text);

/// The same for text of several lines, whose ends stay.
std::string printable_lines(std::string_view text);

}  // namespace stagecraft::cli

#include "parse_json.h"

#include <algorithm>

namespace stagecraft::json {
namespace {

/// The line of a byte, both counted from 1.
auto line_of(std::string_view text, std::size_t byte) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text.size()));
  return 1 + std::count(text.begin(), end, '\n');
}

[[noreturn]] void refuse(std::string_view text, std::size_t at, const std::string& why, std::string_view remedy) {
  throw InvalidArgument("line " + std::to_string(line_of(text, at)) + ": " + why + ": " + std::string(remedy));
}

}  // namespace

void check_text(std::string_view text, std::string_view remedy) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (letter == '\0') refuse(text, i, "this is not JSON, it holds a byte 0", remedy);
    if (in_string) {
      if (letter == '\\' && i + 1 < text.size() && text[i + 1] != '\0') ++i;
      in_string = letter != '"';
    } else if (letter == '"') {
      in_string = true;
    } else if (letter == '[' || letter == '{') {
      if (++depth > kDeepest)
        refuse(text, i, "lists and objects are nested more than " + std::to_string(kDeepest) + " deep", remedy);
    } else if (letter == ']' || letter == '}') {
      --depth;
    }
  }
}

std::string not_json(std::string_view text, std::size_t byte, std::string_view remedy) {
  return "line " + std::to_string(line_of(text, byte)) + ": this is not JSON: " + std::string(remedy);
}

std::string_view reason_in(std::string_view what) {
  if (const auto end = what.find("] "); what.starts_with('[') && end != std::string_view::npos) {
    what.remove_prefix(end + 2);
  }
  if (const auto colon = what.rfind(": "); colon != std::string_view::npos) what.remove_prefix(colon + 2);
  return what;
}

}  // namespace stagecraft::json

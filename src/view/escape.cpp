#include "escape.h"

#include <fmt/format.h>

#include "stagecraft/core/text.h"

namespace stagecraft::detail {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::string_view kEllipsis = "\xE2\x80\xA6";

/// Calls `visit` with each code point as UTF-8; invalid bytes become the replacement character.
template <typename Visit>
void for_each_code_point(std::string_view text, Visit&& visit) {
  for_each_character(text, [&](std::string_view c, bool valid) { visit(valid ? c : kReplacement); });
}

bool is_control(std::string_view code_point) {
  return code_point.size() == 1 && static_cast<unsigned char>(code_point[0]) < 0x20;
}

/// Characters that XML 1.0 cannot represent, not even as a character reference.
bool is_forbidden_in_xml(std::string_view code_point) {
  return is_control(code_point) || code_point == "\xEF\xBF\xBE" || code_point == "\xEF\xBF\xBF";
}

}  // namespace

std::string json_escaped(std::string_view text) {
  std::string out;
  for_each_code_point(text, [&](std::string_view c) {
    if (c == "\"" || c == "\\") {
      out.append("\\").append(c);
    } else if (is_control(c)) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c[0]));
    } else {
      out += c;
    }
  });
  return out;
}

std::string xml_escaped(std::string_view text) {
  std::string out;
  for_each_code_point(text, [&](std::string_view c) {
    if (c == "&") {
      out += "&amp;";
    } else if (c == "<") {
      out += "&lt;";
    } else if (c == ">") {
      out += "&gt;";
    } else if (c == "\"") {
      out += "&quot;";
    } else {
      out += is_forbidden_in_xml(c) ? kReplacement : c;
    }
  });
  return out;
}

std::string shortened(std::string_view text, std::size_t most) {
  std::string out;
  std::size_t count = 0;
  std::size_t cut = 0;  // where the ellipsis would go
  for_each_code_point(text, [&](std::string_view c) {
    if (++count == most) cut = out.size();
    if (count <= most) out += c;
  });
  if (count > most) out.replace(cut, std::string::npos, kEllipsis);
  return out;
}

}  // namespace stagecraft::detail

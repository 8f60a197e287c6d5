#include "escape.h"

#include <fmt/format.h>

#include <cstdint>

namespace stagecraft::detail {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::string_view kEllipsis = "\xE2\x80\xA6";

/// Length of the valid UTF-8 sequence at the front of `text`, 0 when there is none. Overlong forms, surrogates and
/// values past U+10FFFF are not valid.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return 0;
  if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return 0;
  return length;
}

/// Calls `visit` with each code point as UTF-8.
template <typename Visit>
void for_each_code_point(std::string_view text, Visit&& visit) {
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    visit(length == 0 ? kReplacement : text.substr(0, length));
    text.remove_prefix(length == 0 ? 1 : length);
  }
}

bool is_control(std::string_view code_point) {
  return code_point.size() == 1 && static_cast<unsigned char>(code_point[0]) < 0x20;
}

/// XML 1.0 has no way to write these, not even as a character reference.
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

#include "printable.h"

#include <algorithm>
#include <cstdint>

namespace stagecraft::cli {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

/// Bytes in the UTF-8 character that begins at `i`, 0 if there is none: cut short, overlong, a surrogate, out of range.
std::size_t character_length(std::string_view text, std::size_t i) {
  const unsigned char lead = byte_at(text, i);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || i + length > text.size()) return 0;
  std::uint32_t code = lead & (0x7fU >> length);
  for (std::size_t k = 1; k < length; ++k) {
    const unsigned char next = byte_at(text, i + k);
    if ((next & 0xc0U) != 0x80) return 0;
    code = code << 6 | (next & 0x3fU);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return overlong || surrogate || code > 0x10ffff ? 0 : length;
}

bool is_control(std::string_view character) {
  const unsigned char lead = byte_at(character, 0);
  // C0, DEL, and the C1 set (U+0080 to U+009F), which some terminals obey as well.
  return lead < 0x20 || lead == 0x7f || (lead == 0xc2 && byte_at(character, 1) < 0xa0);
}

}  // namespace

std::string printable(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_length(text, i);
    const std::string_view character = text.substr(i, length > 0 ? length : 1);
    if (length > 0 && !is_control(character)) {
      out += character;
    } else {
      for (const char c : character) {
        const auto byte = static_cast<unsigned char>(c);
        out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
    }
    i += character.size();
  }
  return out;
}

std::string printable_lines(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += printable(text.substr(0, end));
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace stagecraft::cli

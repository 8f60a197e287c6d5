#include "printable.h"

#include <algorithm>

#include "stagecraft/core/text.h"

namespace stagecraft::cli {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

bool is_control(std::string_view character) {
  const unsigned char lead = byte_at(character, 0);
  // C0, DEL, and the C1 set (U+0080 to U+009F), which some terminals interpret too.
  return lead < 0x20 || lead == 0x7f || (lead == 0xc2 && byte_at(character, 1) < 0xa0);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for_each_character(text, [&](std::string_view character, bool valid) {
    if (valid && !is_control(character)) {
      out += character;
    } else {
      for (const char byte : character) append_escaped(out, byte);
    }
  });
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

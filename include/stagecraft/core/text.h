#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

/// Text from users and files, made fit for messages: lists of faults, quotes, and the characters of UTF-8.
namespace stagecraft {

/// Collects several errors, to report them in one message.
class Faults {
 public:
  static constexpr std::size_t kEnough = 20;

  void add(std::string fault) {
    if (texts_.size() < kEnough) texts_.push_back(std::move(fault));
    ++count_;
  }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  /// "a; b; and 3 more".
  [[nodiscard]] std::string text(std::string_view between = "; ") const {
    std::string all;
    for (const std::string& text : texts_) {
      if (!all.empty()) all += between;
      all += text;
    }
    if (count_ > texts_.size()) {
      all += between;
      all += "and " + std::to_string(count_ - texts_.size()) + " more";
    }
    return all;
  }

 private:
  std::vector<std::string> texts_;
  std::size_t count_ = 0;
};

/// Cuts a text longer than `most` bytes to `most` bytes, the last three of them "...".
inline std::string shortened(std::string text, std::size_t most = 40) {
  if (text.size() > most) text = text.substr(0, most - 3) + "...";
  return text;
}

/// Without what follows the first line, such as the stack of an error of LibTorch, or the table around an action.
inline std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

/// Quoted for an error message: at most 100 bytes, control characters replaced by '?'.
inline std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMost = 100;
  std::string result = "'";
  for (const char letter : text.substr(0, kMost)) {
    const bool is_control = static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f;
    result += is_control ? '?' : letter;
  }
  return result + (text.size() > kMost ? "...'" : "'");
}

/// Length in bytes of the UTF-8 character at the start of `text`, which must not be empty. Returns 0 for an invalid
/// one: truncated, overlong, a surrogate, or above U+10FFFF.
inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return 0;
  if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return 0;
  return length;
}

/// Calls `visit(character, valid)` for each character of a UTF-8 text. A byte that is not part of a valid character is
/// passed by itself.
template <typename Visit>
void for_each_character(std::string_view text, Visit&& visit) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    visit(character, length > 0);
    text.remove_prefix(character.size());
  }
}

/// Appends a byte as "\xNN".
inline void append_escaped(std::string& out, char byte) {
  constexpr std::string_view kHex = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(byte);
  out += {'\\', 'x', kHex[value >> 4U], kHex[value & 15U]};
}

}  // namespace stagecraft

#pragma once

#include <string>
#include <string_view>
#include <vector>

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

}  // namespace stagecraft

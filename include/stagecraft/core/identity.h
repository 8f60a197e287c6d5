#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// What ranks compare to make sure that they run the same thing: the library's version, and hashes of their arguments.
namespace stagecraft {

/// The version of the linked library, such as "0.1.0".
std::string_view version();

/// A hash (FNV-1a) as short text.
class Fingerprint {
 public:
  void add(std::uint64_t value) { hash_ = (hash_ ^ value) * 1099511628211U; }
  void add(std::string_view text) {
    for (const char letter : text) add(static_cast<std::uint64_t>(static_cast<unsigned char>(letter)));
    add(~std::uint64_t{0});
  }
  /// "hash 1f3a...".
  [[nodiscard]] std::string text() const;

 private:
  std::uint64_t hash_ = 14695981039346656037U;
};

}  // namespace stagecraft

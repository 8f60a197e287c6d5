#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

/// A hash as short text, by which ranks check that they were given the same arguments.
namespace stagecraft {

class Fingerprint {  // FNV-1a
 public:
  void add(std::uint64_t value) { hash_ = (hash_ ^ value) * 1099511628211U; }
  void add(std::string_view text) {
    for (const char letter : text) add(static_cast<std::uint64_t>(static_cast<unsigned char>(letter)));
    add(~std::uint64_t{0});
  }
  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    out << "hash " << std::hex << hash_;
    return out.str();
  }

 private:
  std::uint64_t hash_ = 14695981039346656037U;
};

}  // namespace stagecraft

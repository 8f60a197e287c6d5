#pragma once

#include <cstddef>
#include <string_view>

namespace stagecraft {

/// Whether a pattern fits the whole of a name, as file patterns of a shell do: `*` is any number of characters, dots
/// among them, `?` is one byte, everything else is itself. At most |pattern| * |name| comparisons.
constexpr bool fits_pattern(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;  // the last `*` so far
  std::size_t taken = 0;                      // where in the name the text after it was last tried
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      // Only the last `*` has to take more: what an earlier one could take as well does not help the rest.
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

/// Whether any of several patterns fits.
template <typename Patterns>
constexpr bool fits_any(const Patterns& patterns, std::string_view name) {
  for (const std::string_view pattern : patterns) {
    if (fits_pattern(pattern, name)) return true;
  }
  return false;
}

}  // namespace stagecraft

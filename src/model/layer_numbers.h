#pragma once

#include <cstdint>

namespace stagecraft {

/// Mixes two numbers into one, so that different pairs practically never give the same; far from the small numbers of
/// nodes. The same on every machine: random numbers depend on it.
constexpr std::uint64_t combined(std::uint64_t a, std::uint64_t b) {
  std::uint64_t mixed = a * 0x9e3779b97f4a7c15U + b + 0x632be59bd9b4e019U;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
  return mixed ^ (mixed >> 31);
}

}  // namespace stagecraft

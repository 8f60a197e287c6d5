#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

/// Strong integer ids. A stage, a rank and a microbatch are all "a small number"; giving each its own type makes
/// swapping two of them a compile error.
namespace stagecraft {

template <typename Tag>
struct Id {
  std::int32_t value = 0;

  constexpr Id() = default;
  template <typename Integer>
  constexpr explicit Id(Integer v) : value(static_cast<std::int32_t>(v)) {}

  /// For indexing containers that hold one entry per id.
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  constexpr auto operator<=>(const Id&) const = default;
  constexpr Id operator+(std::int32_t offset) const { return Id(value + offset); }
  constexpr Id operator-(std::int32_t offset) const { return Id(value - offset); }
};

using StageId = Id<struct StageTag>;
using RankId = Id<struct RankTag>;
using MicrobatchId = Id<struct MicrobatchTag>;

}  // namespace stagecraft

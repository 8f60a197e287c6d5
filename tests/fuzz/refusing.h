#pragma once

#include <cstdlib>

#include "stagecraft/core/error.h"

/// What a fuzz target may and must not see.
namespace stagecraft {

inline void require(bool holds) {
  if (!holds) std::abort();
}

/// Runs a function that may refuse with an Error that has a message; a broken invariant is not a refusal.
template <typename Run>
bool accepts(Run run) {
  try {
    run();
    return true;
  } catch (const InternalError&) {
    std::abort();
  } catch (const Error& error) {
    require(*error.what() != '\0');
    return false;
  }
}

}  // namespace stagecraft

#pragma once

#include <cstddef>
#include <string>

namespace stagecraft {

/// A word that nobody guesses, and that nobody else has.
std::string random_word(std::size_t letters);

}  // namespace stagecraft

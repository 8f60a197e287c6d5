#pragma once

#include <exception>
#include <string>

namespace stagecraft {

/// The message of the exception that `call` throws.
template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace stagecraft

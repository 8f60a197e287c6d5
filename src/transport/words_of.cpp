#include "words_of.h"

#include <c10/util/Exception.h>

#include "stagecraft/core/text.h"

namespace stagecraft {

std::string words_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return first_line(of_torch != nullptr ? of_torch->what_without_backtrace() : error.what());
}

}  // namespace stagecraft

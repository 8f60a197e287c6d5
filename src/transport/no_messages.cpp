#include "stagecraft/transport/no_messages.h"

#include "stagecraft/core/error.h"

namespace stagecraft {

void NoMessages::check() {
  if (const char* why = AlsoInBackwards<const char, NoMessages>::current()) throw InvalidArgument(why);
}

}  // namespace stagecraft

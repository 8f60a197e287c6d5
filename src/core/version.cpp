#include "stagecraft/core/version.h"

namespace stagecraft {

std::string_view version() { return STAGECRAFT_VERSION; }

}  // namespace stagecraft

#include "stagecraft/core/identity.h"

#include <sstream>

namespace stagecraft {

std::string_view version() { return STAGECRAFT_VERSION; }

std::string Fingerprint::text() const {
  std::ostringstream out;
  out << "hash " << std::hex << hash_;
  return out.str();
}

}  // namespace stagecraft

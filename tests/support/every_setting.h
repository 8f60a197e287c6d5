#pragma once

#include <cstdlib>

namespace stagecraft {

/// Whether a test is to look at every setting, as in `make test-all`, or at some of them, as in `make test`.
inline bool every_setting() { return std::getenv("STAGECRAFT_TEST_ALL") != nullptr; }

}  // namespace stagecraft

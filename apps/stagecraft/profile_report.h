#pragma once

#include <iosfwd>

#include "stagecraft/sim/profile.h"

namespace stagecraft::cli {

/// Costs of stages and links in milliseconds, and each run beside what these costs predict for it.
void write_profile_report(std::ostream& out, const Profile& profile);

}  // namespace stagecraft::cli

#pragma once

#include <iosfwd>

#include "stagecraft/sim/profile.h"

namespace stagecraft::cli {

/// Costs of stages and links in milliseconds, and for each run the measured and the predicted period.
void write_profile_report(std::ostream& out, const Profile& profile);

}  // namespace stagecraft::cli

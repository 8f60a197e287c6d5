#pragma once

#include <iosfwd>

#include "report_text.h"

/// The known schedules with placement, bubble and memory, and the passes.
namespace stagecraft::cli {

void write_list(std::ostream& out);
Json list_json();

}  // namespace stagecraft::cli

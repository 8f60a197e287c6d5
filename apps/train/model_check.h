#pragma once

#include <string>

#include "objective.h"
#include "options.h"
#include "stagecraft/model/pipe.h"

namespace stagecraft::train {

/// Throws InvalidArgument for a model that would not be trained at all, or that the optimizer would train otherwise
/// than Python's. Returns a warning about parameters that would not be trained; empty if there are none.
std::string check_model(const Options& options, const Pipe& pipe, const Objective& objective);

}  // namespace stagecraft::train

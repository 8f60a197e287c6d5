#pragma once

#include "options.h"
#include "stagecraft/runtime/pipeline.h"

namespace stagecraft::train {

/// The loss that the options name, on the output that they name.
LossFunction objective(const Options& options);

}  // namespace stagecraft::train

#pragma once

#include "options.h"
#include "stagecraft/model/pipe.h"
#include "stagecraft/runtime/world.h"

namespace stagecraft::train {

/// The model, cut as the options say, for this world. Throws InvalidArgument, FileError.
Pipe cut_for(const Options& options, const World& world);

/// What one rank does. Throws on all ranks when it throws on one.
void train(World& world, const Options& options);

}  // namespace stagecraft::train

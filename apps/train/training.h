#pragma once

#include "options.h"
#include "stagecraft/model/pipe.h"
#include "stagecraft/runtime/world.h"

namespace stagecraft::train {

/// Opens the model and cuts it as the options say. Throws InvalidArgument, FileError.
Pipe cut_for(const Options& options, const World& world);

/// Trains on one rank. If it throws on one rank, it throws on all.
void train(World& world, const Options& options);

}  // namespace stagecraft::train

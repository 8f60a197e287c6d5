#pragma once

#include "data.h"

/// What `open_data` chooses between. Each adds what does not fit to the faults, and returns null if it cannot go on.
namespace stagecraft::train {

/// A file of tokens: row r is a window of as many tokens as the model takes, and the targets are those that follow each
/// of them.
std::unique_ptr<Data> open_tokens(const DataFiles& files, const Options& options, const WantedInputs& wanted,
                                  Faults& faults);

/// Tensors whose rows (dimension 0) are examples: a safetensors file, or inputs and targets in .npy files.
std::unique_ptr<Data> open_tensors(const DataFiles& files, const Options& options, const WantedInputs& wanted,
                                   Faults& faults);

}  // namespace stagecraft::train

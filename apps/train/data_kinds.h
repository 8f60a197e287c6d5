#pragma once

#include "data.h"

/// What `open_data` chooses between. Each adds what does not fit to the faults, and returns null if it cannot go on.
namespace stagecraft::train {

/// One file of data.
struct DataFile {
  std::string path;
  std::string targets;         ///< Empty: they are in `path`.
  std::string targets_option;  ///< For errors.
};

/// A file of tokens: row r is a window of as many tokens as the model takes, and the targets are those that follow each
/// of them.
std::unique_ptr<Data> open_tokens(const DataFile& file, const Options& options, const WantedData& wanted,
                                  Faults& faults);

/// Tensors whose rows are examples: a safetensors file, or inputs and targets in .npy files.
std::unique_ptr<Data> open_tensors(const DataFile& file, const WantedData& wanted, Faults& faults);

/// The rows of several files, one file after the other. Throws FileError when they do not go together.
std::unique_ptr<Data> join_data(std::vector<std::unique_ptr<Data>> parts, const std::vector<std::string>& paths,
                                const WantedData& wanted);

}  // namespace stagecraft::train

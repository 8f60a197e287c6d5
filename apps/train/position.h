#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "options.h"
#include "stagecraft/file/safetensors.h"
#include "stagecraft/runtime/world.h"

namespace stagecraft::train {

/// How far a run has come in its data: part of the metadata of its checkpoints.
struct DataPosition {
  std::int64_t rows_taken = 0;      ///< Positions of the row order, over all epochs.
  std::int64_t rows_per_epoch = 0;  ///< Held-out rows do not count.
  std::string order;                ///< RowOrder::text.
  std::string data;                 ///< Data::fingerprint.

  [[nodiscard]] safetensors::Metadata metadata() const;
};

/// What a run begins with.
struct Beginning {
  std::optional<std::string> from;  ///< The checkpoint to resume; none: a new run.
  std::int64_t rows_taken = 0;      ///< Rows of the data that were read before.
};

/// Decides where in the data a run that may resume from `saved` begins: rank 0 reads the file, and tells the others.
/// `own`, needed on rank 0 alone, is the position of a new run. Throws FileError on all ranks when the file was saved
/// by a run on other data or in another order.
Beginning beginning_of(World& world, const Options& options, const std::optional<std::string>& saved,
                       const DataPosition& own);

}  // namespace stagecraft::train

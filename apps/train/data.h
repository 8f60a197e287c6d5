#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "options.h"
#include "stagecraft/core/text.h"
#include "stagecraft/file/bytes.h"
#include "stagecraft/model/pipe.h"

/// Examples to train on, in files of several kinds.
namespace stagecraft::train {

/// Numbers of rows, counted from 0.
using Rows = std::vector<std::int64_t>;

/// A part of the rows of data.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Rows of the model's inputs and of the targets, read from the file on each call. Tensors are on the CPU.
class Data {
 public:
  Data() = default;
  Data(const Data&) = delete;
  Data& operator=(const Data&) = delete;
  virtual ~Data() = default;

  [[nodiscard]] virtual std::int64_t rows() const = 0;
  /// An input of the model that is cut by rows.
  [[nodiscard]] virtual at::Tensor input(const std::string& name, const Rows& which) const = 0;
  /// An input of the model that is the same for all rows.
  [[nodiscard]] virtual at::Tensor whole(const std::string& name) const = 0;
  [[nodiscard]] virtual at::Tensor targets(const Rows& which) const = 0;
  /// 0 if the rows are not of tokens.
  [[nodiscard]] virtual std::int64_t tokens_per_row() const { return 0; }
  /// The same for the same contents; see `sampled_checksum`.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
};

/// The inputs of a model that data has to fill.
struct WantedInputs {
  std::vector<ModelInput> by_row;
  std::vector<ModelInput> whole;

  /// Adds those that data cannot fill to the faults.
  static WantedInputs of(const Pipe& pipe, Faults& faults);
  /// "tokens, shift".
  [[nodiscard]] std::string names() const;
};

struct DataFiles {
  std::string path;
  std::string targets;         ///< Empty: they are in `path`.
  std::string targets_option;  ///< For errors.
};

/// Opens data for a model. Throws FileError that lists everything that does not fit.
std::unique_ptr<Data> open_data(const DataFiles& files, const Options& options, const Pipe& pipe);

/// The size and the checksum of 64 blocks of 4096 bytes, evenly spread from the first to the last: tells files apart
/// without reading all of them.
std::string sampled_checksum(const ByteSource& file);

}  // namespace stagecraft::train

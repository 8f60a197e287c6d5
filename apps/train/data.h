#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
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
  /// `path` is for errors.
  explicit Data(std::string path) : path_(std::move(path)) {}
  Data(const Data&) = delete;
  Data& operator=(const Data&) = delete;
  virtual ~Data() = default;

  /// The file; the first one if there are several.
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] virtual std::int64_t rows() const = 0;
  /// Some rows of an input or of targets, which are along this dimension.
  [[nodiscard]] virtual at::Tensor input(const std::string& name, const Rows& which, std::int64_t along) const = 0;
  [[nodiscard]] virtual at::Tensor targets(const std::string& name, const Rows& which, std::int64_t along) const = 0;
  /// An input of the model that is the same for all rows.
  [[nodiscard]] virtual at::Tensor whole(const std::string& name) const = 0;
  /// Type and shape of all targets of that name; of several files, in the first of them.
  [[nodiscard]] virtual TensorSpec spec_of_targets(const std::string& name) const = 0;
  /// The number of rows of the targets where it is not that of the inputs, in the first such file; none if there is
  /// none.
  [[nodiscard]] virtual std::optional<std::int64_t> other_rows(const std::string& name, std::int64_t along) const = 0;
  /// 0 if the rows are not of tokens.
  [[nodiscard]] virtual std::int64_t tokens_per_row() const { return 0; }
  /// The same for the same contents; see `sampled_checksum`.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  /// For errors, where a number of a row is: "row 3 of 'target'", or "at 101" for the token in that place of the row.
  [[nodiscard]] virtual std::string place_of(const std::string& name, std::int64_t row, std::int64_t /*token*/) const {
    return "row " + std::to_string(row) + " of '" + name + "'";
  }

 private:
  std::string path_;
};

/// What a run takes from data: inputs of the model, and targets.
struct WantedData {
  std::vector<ModelLeaf> by_row;
  std::vector<ModelLeaf> whole;
  std::vector<std::string> targets;
  /// The dynamic size that counts rows; empty if there is none.
  std::string symbol;
  /// The rows that a microbatch must have, if the model does not take any number.
  std::optional<std::int64_t> static_rows;

  /// Adds inputs that data cannot fill to the faults.
  static WantedData of(const Pipe& pipe, const Options& options, Faults& faults);
  /// How the inputs are cut into microbatches, by name.
  [[nodiscard]] std::map<std::string, Split> splits(const Pipe& pipe) const;
  /// "tokens, shift".
  [[nodiscard]] std::string names() const;
};

struct DataFiles {
  std::vector<std::string> paths;    ///< Their rows follow each other.
  std::vector<std::string> targets;  ///< The targets of inputs in .npy, one file for each path; otherwise empty.
  std::string targets_option;        ///< For errors.
};

/// Opens data for a model. Throws FileError that lists everything that does not fit.
std::shared_ptr<const Data> open_data(const DataFiles& files, const Options& options, const WantedData& wanted);

/// Whether the data are tokens: rows are windows of one long text.
bool are_tokens(const std::string& path, bool has_targets);

/// The size and the checksum of 64 blocks of 4096 bytes, evenly spread from the first to the last: tells files apart
/// without reading all of them.
std::string sampled_checksum(const ByteSource& file);

}  // namespace stagecraft::train

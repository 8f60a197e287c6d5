#include <ATen/ops/empty.h>

#include <functional>
#include <map>
#include <optional>

#include "data_kinds.h"
#include "stagecraft/checkpoint/dtypes.h"
#include "stagecraft/core/error.h"
#include "stagecraft/file/npy.h"
#include "stagecraft/file/safetensors.h"

namespace stagecraft::train {
namespace {

/// A tensor in a file.
struct StoredArray {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
  std::function<void(std::uint64_t offset, void* into, std::size_t size)> read;

  /// With LibTorch's name of the type, if LibTorch has it.
  [[nodiscard]] std::string text() const {
    const std::optional<at::ScalarType> type = dtype_of(dtype);
    return type ? TensorSpec{shape, *type}.text() : safetensors::Entry{"", dtype, shape, 0, 0}.text();
  }
};

class TensorData : public Data {
 public:
  using Arrays = std::map<std::string, StoredArray>;

  /// `paths`: of the files that the arrays are in.
  TensorData(Arrays inputs, Arrays targets, std::vector<std::string> paths)
      : Data(paths.front()), inputs_(std::move(inputs)), targets_(std::move(targets)), paths_(std::move(paths)) {}

  void check(const WantedData& wanted, Faults& faults) {
    for (const ModelLeaf& leaf : wanted.by_row) check(leaf, faults);
    for (const ModelLeaf& leaf : wanted.whole) check(leaf, faults);
    for (const std::string& name : wanted.targets) {
      const StoredArray* const targets = find(targets_, name, "; name the targets with --target, or in --loss", faults);
      if (targets == nullptr) continue;
      if (!dtype_of(targets->dtype))
        faults.add("'" + name + "' is " + targets->text() + ", which LibTorch does not have");
      if (targets->shape.empty()) faults.add("'" + name + "' is " + targets->text() + ", which has no rows");
    }
  }

  [[nodiscard]] std::int64_t rows() const override { return rows_.value_or(0); }
  [[nodiscard]] at::Tensor input(const std::string& name, const Rows& which, std::int64_t along) const override {
    return read_rows(inputs_.at(name), which, along);
  }
  [[nodiscard]] at::Tensor targets(const std::string& name, const Rows& which, std::int64_t along) const override {
    return read_rows(targets_.at(name), which, along);
  }
  [[nodiscard]] TensorSpec spec_of_targets(const std::string& name) const override {
    const StoredArray& from = targets_.at(name);
    return {from.shape, *dtype_of(from.dtype)};
  }
  [[nodiscard]] std::optional<std::int64_t> other_rows(const std::string& name, std::int64_t along) const override {
    const std::vector<std::int64_t>& shape = targets_.at(name).shape;
    const auto dimension = static_cast<std::size_t>(along);
    const std::int64_t own = dimension < shape.size() ? shape[dimension] : 0;
    return own == rows() ? std::nullopt : std::optional(own);
  }
  [[nodiscard]] std::string fingerprint() const override {
    std::string text;
    for (const std::string& path : paths_) text += (text.empty() ? "" : ", ") + sampled_checksum(*open_file(path));
    return text;
  }

  [[nodiscard]] at::Tensor whole(const std::string& name) const override {
    const StoredArray& from = inputs_.at(name);
    at::Tensor tensor = at::empty(from.shape, at::TensorOptions().dtype(*dtype_of(from.dtype)));
    from.read(0, tensor.data_ptr(), from.bytes);
    return tensor;
  }

 private:
  /// A row is one piece of the file, or one in each of what comes before its dimension.
  static at::Tensor read_rows(const StoredArray& from, const Rows& which, std::int64_t along) {
    std::vector<std::int64_t> sizes = from.shape;
    const auto dimension = static_cast<std::size_t>(along);
    const std::int64_t of_file = sizes[dimension];
    std::int64_t outer = 1;
    for (std::size_t d = 0; d < dimension; ++d) outer *= sizes[d];
    const auto count = static_cast<std::uint64_t>(outer * of_file);
    const std::size_t piece = count == 0 ? 0 : from.bytes / count;
    sizes[dimension] = static_cast<std::int64_t>(which.size());
    at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(*dtype_of(from.dtype)));
    auto* into = static_cast<char*>(tensor.data_ptr());
    for (std::int64_t before = 0; before < outer; ++before) {
      for (const std::int64_t row : which) {
        from.read(static_cast<std::uint64_t>(before * of_file + row) * piece, into, piece);
        into += piece;
      }
    }
    return tensor;
  }

  static const StoredArray* find(const Arrays& arrays, const std::string& name, const char* remedy, Faults& faults) {
    const auto found = arrays.find(name);
    if (found != arrays.end()) return &found->second;
    std::string names;
    for (const auto& [present, array] : arrays) names += (names.empty() ? "" : ", ") + present;
    faults.add("there is no tensor '" + name + "': it has " + (names.empty() ? "none" : names) + remedy);
    return nullptr;
  }

  void check(const ModelLeaf& leaf, Faults& faults) {
    const StoredArray* const array = find(inputs_, leaf.name, "", faults);
    if (array == nullptr) return;
    TensorSpec takes = *leaf.tensor;
    if (leaf.rows) takes.sizes[static_cast<std::size_t>(*leaf.rows)] = TensorSpec::kAny;
    bool fits = dtype_of(array->dtype) == takes.dtype && array->shape.size() == takes.sizes.size();
    for (std::size_t d = 0; fits && d < array->shape.size(); ++d) {
      fits = takes.sizes[d] == TensorSpec::kAny || takes.sizes[d] == array->shape[d];
    }
    if (!fits) {
      faults.add("'" + leaf.name + "' is " + array->text() + ", but the model takes " + takes.text() +
                 (leaf.rows && *leaf.rows > 0
                      ? ", with its rows along dimension " + std::to_string(*leaf.rows) + ", which is dynamic"
                      : ""));
    }
    if (fits && leaf.rows) count(leaf.name, array->shape[static_cast<std::size_t>(*leaf.rows)], faults);
  }

  void count(const std::string& name, std::int64_t rows, Faults& faults) {
    if (rows_ && *rows_ != rows) {
      faults.add("'" + name + "' has " + std::to_string(rows) + " rows, others have " + std::to_string(*rows_));
    }
    if (!rows_) rows_ = rows;
  }

  Arrays inputs_;
  Arrays targets_;
  std::vector<std::string> paths_;
  std::optional<std::int64_t> rows_;
};

std::unique_ptr<TensorData> from_safetensors(const std::string& path) {
  const auto reader = std::make_shared<const safetensors::Reader>(path);
  TensorData::Arrays arrays;
  for (const safetensors::Entry& entry : reader->entries()) {
    arrays.emplace(entry.name, StoredArray{entry.dtype, entry.shape, entry.bytes,
                                           [reader, &entry](std::uint64_t offset, void* into, std::size_t size) {
                                             reader->read(entry, offset, into, size);
                                           }});
  }
  return std::make_unique<TensorData>(arrays, arrays, std::vector{path});
}

StoredArray from_numpy(const std::string& path) {
  const auto reader = std::make_shared<const npy::Reader>(path);
  return {reader->header().dtype, reader->header().shape, reader->header().bytes,
          [reader](std::uint64_t offset, void* into, std::size_t size) { reader->read(offset, into, size); }};
}

}  // namespace

std::unique_ptr<Data> open_tensors(const DataFile& file, const WantedData& wanted, Faults& faults) {
  std::unique_ptr<TensorData> data;
  if (!file.path.ends_with(".npy")) {
    data = from_safetensors(file.path);
  } else if (wanted.by_row.size() == 1 && wanted.whole.empty() && wanted.targets.size() == 1) {
    data = std::make_unique<TensorData>(TensorData::Arrays{{wanted.by_row.front().name, from_numpy(file.path)}},
                                        TensorData::Arrays{{wanted.targets.front(), from_numpy(file.targets)}},
                                        std::vector{file.path, file.targets});
  } else {
    faults.add("the model takes " + std::to_string(wanted.by_row.size() + wanted.whole.size()) + " inputs (" +
               wanted.names() + ") and the loss " + std::to_string(wanted.targets.size()) +
               " targets, and .npy files fill one each: put all of them into a .safetensors file");
    return nullptr;
  }
  data->check(wanted, faults);
  return data;
}

}  // namespace stagecraft::train

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
  /// `paths`: of the files that the arrays are in.
  TensorData(std::map<std::string, StoredArray> arrays, std::string target, std::vector<std::string> paths)
      : arrays_(std::move(arrays)), target_(std::move(target)), paths_(std::move(paths)) {}

  void check(const WantedInputs& wanted, Faults& faults) {
    for (const ModelInput& input : wanted.by_row) check(input, /*by_row=*/true, faults);
    for (const ModelInput& input : wanted.whole) check(input, /*by_row=*/false, faults);
    if (const StoredArray* targets = find(target_, faults)) {
      if (!dtype_of(targets->dtype)) {
        faults.add("'" + target_ + "' is " + targets->text() + ", which LibTorch does not have");
      }
      count(target_, *targets, faults);
    }
  }

  [[nodiscard]] std::int64_t rows() const override { return rows_.value_or(0); }
  [[nodiscard]] at::Tensor targets(const Rows& which) const override { return input(target_, which); }
  [[nodiscard]] std::string fingerprint() const override {
    std::string text;
    for (const std::string& path : paths_) text += (text.empty() ? "" : ", ") + sampled_checksum(*open_file(path));
    return text;
  }

  [[nodiscard]] at::Tensor input(const std::string& name, const Rows& which) const override {
    const StoredArray& from = arrays_.at(name);
    std::vector<std::int64_t> sizes = from.shape;
    const auto row_bytes =
        static_cast<std::size_t>(sizes.front() == 0 ? 0 : from.bytes / static_cast<std::uint64_t>(sizes.front()));
    sizes.front() = static_cast<std::int64_t>(which.size());
    at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(*dtype_of(from.dtype)));
    auto* into = static_cast<char*>(tensor.data_ptr());
    for (const std::int64_t row : which) {
      from.read(static_cast<std::uint64_t>(row) * row_bytes, into, row_bytes);
      into += row_bytes;
    }
    return tensor;
  }

  [[nodiscard]] at::Tensor whole(const std::string& name) const override {
    const StoredArray& from = arrays_.at(name);
    at::Tensor tensor = at::empty(from.shape, at::TensorOptions().dtype(*dtype_of(from.dtype)));
    from.read(0, tensor.data_ptr(), from.bytes);
    return tensor;
  }

 private:
  const StoredArray* find(const std::string& name, Faults& faults) const {
    const auto found = arrays_.find(name);
    if (found != arrays_.end()) return &found->second;
    std::string names;
    for (const auto& [present, array] : arrays_) names += (names.empty() ? "" : ", ") + present;
    faults.add("there is no tensor '" + name + "': it has " + (names.empty() ? "none" : names) +
               (name == target_ ? "; name the targets with --target" : ""));
    return nullptr;
  }

  void check(const ModelInput& input, bool by_row, Faults& faults) {
    const StoredArray* array = find(input.name, faults);
    if (array == nullptr) return;
    TensorSpec takes = *input.tensor;
    if (by_row && !takes.sizes.empty()) takes.sizes.front() = TensorSpec::kAny;
    bool fits = dtype_of(array->dtype) == takes.dtype && array->shape.size() == takes.sizes.size();
    for (std::size_t d = 0; fits && d < array->shape.size(); ++d) {
      fits = takes.sizes[d] == TensorSpec::kAny || takes.sizes[d] == array->shape[d];
    }
    if (!fits) faults.add("'" + input.name + "' is " + array->text() + ", but the model takes " + takes.text());
    if (fits && by_row) count(input.name, *array, faults);
  }

  void count(const std::string& name, const StoredArray& array, Faults& faults) {
    const std::int64_t rows = array.shape.empty() ? 0 : array.shape.front();
    if (rows_ && *rows_ != rows) {
      faults.add("'" + name + "' has " + std::to_string(rows) + " rows, others have " + std::to_string(*rows_));
    }
    if (!rows_) rows_ = rows;
  }

  std::map<std::string, StoredArray> arrays_;
  std::string target_;
  std::vector<std::string> paths_;
  std::optional<std::int64_t> rows_;
};

std::unique_ptr<TensorData> from_safetensors(const std::string& path, const std::string& target) {
  const auto reader = std::make_shared<const safetensors::Reader>(path);
  std::map<std::string, StoredArray> arrays;
  for (const safetensors::Entry& entry : reader->entries()) {
    arrays.emplace(entry.name, StoredArray{entry.dtype, entry.shape, entry.bytes,
                                           [reader, &entry](std::uint64_t offset, void* into, std::size_t size) {
                                             reader->read(entry, offset, into, size);
                                           }});
  }
  return std::make_unique<TensorData>(std::move(arrays), target, std::vector{path});
}

std::unique_ptr<TensorData> from_numpy(const DataFiles& files, const std::string& input, const std::string& target) {
  std::map<std::string, StoredArray> arrays;
  for (const auto& [name, path] : {std::pair(input, files.path), {target, files.targets}}) {
    const auto reader = std::make_shared<const npy::Reader>(path);
    arrays.emplace(name, StoredArray{reader->header().dtype, reader->header().shape, reader->header().bytes,
                                     [reader](std::uint64_t offset, void* into, std::size_t size) {
                                       reader->read(offset, into, size);
                                     }});
  }
  return std::make_unique<TensorData>(std::move(arrays), target, std::vector{files.path, files.targets});
}

}  // namespace

std::unique_ptr<Data> open_tensors(const DataFiles& files, const Options& options, const WantedInputs& wanted,
                                   Faults& faults) {
  std::unique_ptr<TensorData> data;
  if (!files.path.ends_with(".npy")) {
    data = from_safetensors(files.path, options.target);
  } else if (wanted.by_row.size() == 1 && wanted.whole.empty()) {
    const std::string& input = wanted.by_row.front().name;
    data = from_numpy(files, input, input == options.target ? "the targets" : options.target);
  } else {
    faults.add("the model takes " + std::to_string(wanted.by_row.size() + wanted.whole.size()) + " inputs (" +
               wanted.names() + "), and a .npy file fills one: put all of them into a .safetensors file");
    return nullptr;
  }
  data->check(wanted, faults);
  return data;
}

}  // namespace stagecraft::train

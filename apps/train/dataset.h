#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "stagecraft/file/safetensors.h"

namespace stagecraft::train {

/// Tensors of a safetensors file whose rows (dimension 0) are examples. Nothing is held: rows are read when asked for.
class Dataset {
 public:
  /// Throws FileError.
  explicit Dataset(const std::string& path) : reader_(path) {}

  [[nodiscard]] const std::string& path() const { return reader_.path(); }
  /// Throws FileError that lists what there is.
  [[nodiscard]] const safetensors::Entry& entry(const std::string& name) const;
  [[nodiscard]] at::Tensor rows(const std::string& name, const std::vector<std::int64_t>& which) const;
  [[nodiscard]] at::Tensor whole(const std::string& name) const;

 private:
  safetensors::Reader reader_;
};

/// Which rows a step takes. It depends on nothing but its numbers, so a run can go on anywhere.
class RowOrder {
 public:
  RowOrder(std::int64_t rows, std::int64_t batch, bool shuffle, std::uint64_t seed)
      : rows_(rows), batch_(batch), shuffle_(shuffle), seed_(seed) {}

  /// The rows of batch number `index`, counted over all steps and replicas; rows that do not fill a batch at the end of
  /// an epoch are left out of it.
  std::vector<std::int64_t> batch(std::int64_t index);

 private:
  std::int64_t rows_;
  std::int64_t batch_;
  bool shuffle_;
  std::uint64_t seed_;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;
};

/// LibTorch's type for the format's ("F32"). Throws FileError for one that it does not have.
at::ScalarType scalar_type_of(const safetensors::Entry& entry, const std::string& path);

}  // namespace stagecraft::train

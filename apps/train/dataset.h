#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "stagecraft/file/safetensors.h"

namespace stagecraft::train {

/// Tensors of a safetensors file whose rows (dimension 0) are examples. Rows are read from the file on each call.
class Dataset {
 public:
  /// Throws FileError.
  explicit Dataset(const std::string& path) : reader_(path) {}

  /// Null when there is none of that name.
  [[nodiscard]] const safetensors::Entry* find(const std::string& name) const { return reader_.find(name); }
  /// "inputs, target".
  [[nodiscard]] std::string names() const;
  /// Both require a tensor of that name, and throw InvalidArgument for a type that LibTorch does not have.
  [[nodiscard]] at::Tensor rows(const std::string& name, const std::vector<std::int64_t>& which) const;
  [[nodiscard]] at::Tensor whole(const std::string& name) const;

 private:
  safetensors::Reader reader_;
};

/// The order of rows. It depends only on the arguments of the constructor, so a run can resume at any step.
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

}  // namespace stagecraft::train

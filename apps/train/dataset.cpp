#include "dataset.h"

#include <ATen/ops/empty.h>

#include <numeric>

#include "stagecraft/checkpoint/dtypes.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/random.h"

namespace stagecraft::train {

namespace {

at::Tensor room_for(const safetensors::Entry& entry, const std::vector<std::int64_t>& sizes) {
  const std::optional<at::ScalarType> type = dtype_of(entry.dtype);
  if (!type) throw InvalidArgument("'" + entry.name + "' is " + entry.dtype + ", which LibTorch does not have");
  return at::empty(sizes, at::TensorOptions().dtype(*type));
}

}  // namespace

std::string Dataset::names() const {
  std::string names;
  for (const safetensors::Entry& each : reader_.entries()) names += (names.empty() ? "" : ", ") + each.name;
  return names.empty() ? "none" : names;
}

at::Tensor Dataset::rows(const std::string& name, const std::vector<std::int64_t>& which) const {
  const safetensors::Entry& from = *find(name);
  std::vector<std::int64_t> sizes = from.shape;
  const auto row_bytes =
      static_cast<std::size_t>(sizes.front() == 0 ? 0 : from.bytes / static_cast<std::uint64_t>(sizes.front()));
  sizes.front() = static_cast<std::int64_t>(which.size());
  at::Tensor tensor = room_for(from, sizes);
  auto* into = static_cast<char*>(tensor.data_ptr());
  for (const std::int64_t row : which) {
    reader_.read(from, static_cast<std::uint64_t>(row) * row_bytes, into, row_bytes);
    into += row_bytes;
  }
  return tensor;
}

at::Tensor Dataset::whole(const std::string& name) const {
  const safetensors::Entry& from = *find(name);
  at::Tensor tensor = room_for(from, from.shape);
  reader_.read(from, 0, tensor.data_ptr(), from.bytes);
  return tensor;
}

std::vector<std::int64_t> RowOrder::batch(std::int64_t index) {
  const std::int64_t per_epoch = rows_ / batch_;
  const std::int64_t epoch = index / per_epoch;
  if (epoch != epoch_) {
    epoch_ = epoch;
    order_.resize(static_cast<std::size_t>(rows_));
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
    Random random;
    random.seed(seed_ * 1000003 + static_cast<std::uint64_t>(epoch));
    for (std::size_t i = order_.size(); shuffle_ && i > 1; --i) std::swap(order_[i - 1], order_[random.next() % i]);
  }
  const auto begin = order_.begin() + (index % per_epoch) * batch_;
  return {begin, begin + batch_};
}

}  // namespace stagecraft::train

#include "buckets.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace stagecraft {
namespace {

/// Bytes from which a tensor is averaged in place: copying it into a bucket would cost more than it saves.
constexpr std::size_t kLarge = 256 << 10;
constexpr std::int64_t kAtOnce = 4;
constexpr std::size_t kMostAtOnce = 256;  // the most that one message can describe

}  // namespace

void Buckets::add(const at::Tensor& tensor) {
  if (tensor.nbytes() >= kLarge && tensor.is_contiguous()) return add_pieces(tensor.view({-1}));
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  const bool fits =
      small_.empty() || (small_bytes_ + bytes <= bucket_bytes_ && small_[0].scalar_type() == tensor.scalar_type());
  if (!fits) lay_side_by_side();
  small_.push_back(tensor);
  small_bytes_ += bytes;
}

void Buckets::close() {
  lay_side_by_side();
  average();
}

void Buckets::add_pieces(const at::Tensor& flat) {
  const std::int64_t piece = std::max<std::int64_t>(1, bucket_bytes_ / static_cast<std::int64_t>(flat.itemsize()));
  for (std::int64_t at = 0; at < flat.numel(); at += piece) {
    add_bucket(flat.narrow(0, at, std::min(piece, flat.numel() - at)));
  }
}

void Buckets::lay_side_by_side() {
  if (small_.empty()) return;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : small_) flat.push_back(tensor.reshape({-1}));
  const at::Tensor buffer = at::cat(flat);
  side_by_side_.push_back({buffer, std::move(small_)});
  small_.clear();
  small_bytes_ = 0;
  add_bucket(buffer);
}

void Buckets::add_bucket(const at::Tensor& bucket) {
  buckets_.push_back(bucket);
  bytes_ += static_cast<std::int64_t>(bucket.nbytes());
  if (bytes_ >= kAtOnce * bucket_bytes_ || buckets_.size() == kMostAtOnce) average();
}

void Buckets::average() {
  group_.all_reduce(buckets_, Reduction::kMean);
  for (const auto& [buffer, tensors] : side_by_side_) {
    std::int64_t at = 0;
    for (const at::Tensor& tensor : tensors) {
      tensor.copy_(buffer.narrow(0, at, tensor.numel()).view(tensor.sizes()));
      at += tensor.numel();
    }
  }
  buckets_.clear();
  side_by_side_.clear();
  bytes_ = 0;
}

}  // namespace stagecraft

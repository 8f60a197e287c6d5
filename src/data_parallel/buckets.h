#pragma once

#include <vector>

#include "stagecraft/transport/group.h"

namespace stagecraft {

/// Tensors that are averaged over a group in buckets: small ones side by side in one, large ones where they are, in
/// pieces. A few buckets travel at once, so that members seldom wait for each other; not all, so that what has arrived
/// takes little memory.
class Buckets {
 public:
  Buckets(Group& group, std::int64_t bucket_bytes) : group_(group), bucket_bytes_(bucket_bytes) {}

  /// It may be averaged at once, or with later ones.
  void add(const at::Tensor& tensor);
  /// Averages what is left.
  void close();

 private:
  /// Small tensors, and the buffer in which they travel.
  struct SideBySide {
    at::Tensor buffer;
    std::vector<at::Tensor> tensors;
  };

  void add_pieces(const at::Tensor& flat);
  void lay_side_by_side();
  void add_bucket(const at::Tensor& bucket);
  void average();

  Group& group_;
  std::int64_t bucket_bytes_;
  std::vector<at::Tensor> small_;
  std::int64_t small_bytes_ = 0;
  std::vector<at::Tensor> buckets_;  // that travel together
  std::int64_t bytes_ = 0;
  std::vector<SideBySide> side_by_side_;  // of these buckets
};

}  // namespace stagecraft

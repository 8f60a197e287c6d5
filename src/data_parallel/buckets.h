#pragma once

#include <vector>

#include "stagecraft/transport/group.h"

namespace stagecraft {

/// Averages tensors over a group in buckets: small ones are copied into one bucket, large ones are averaged in place,
/// in pieces. A few buckets are sent at once, so that members seldom wait for each other; not all, to limit the memory
/// of what arrives.
class Buckets {
 public:
  Buckets(Group& group, std::int64_t bucket_bytes) : group_(group), bucket_bytes_(bucket_bytes) {}

  /// The tensor may be averaged now, or with later ones.
  void add(const at::Tensor& tensor);
  /// Averages the tensors that are left.
  void close();

 private:
  /// Small tensors, and the bucket that holds copies of them.
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
  std::vector<at::Tensor> buckets_;  // sent together
  std::int64_t bytes_ = 0;
  std::vector<SideBySide> side_by_side_;  // the small tensors of these buckets
};

}  // namespace stagecraft

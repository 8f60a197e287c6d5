#pragma once

#include <map>
#include <string>
#include <vector>

#include "stock.h"

/// How the tensors of a checkpoint travel to rank 0: in bundles, each one piece of host memory with the data of one or
/// more tensors, or parts of tensors, of one rank. All ranks make the same plan, so that nothing but data is sent.
namespace stagecraft {

/// A tensor, or the part of a sharded one that one replica has, within a bundle.
struct BundlePiece {
  std::size_t entry = 0;  // of the file
  std::size_t bundle = 0;
  std::size_t begin = 0;  // in the bundle
  std::size_t bytes = 0;
};

class BundlePlan {
 public:
  BundlePlan(const std::map<std::string, StockLine>& lines, int replicas);

  struct Bundle {
    RankId sender;  // of the world
    std::size_t bytes = 0;
    std::vector<std::size_t> pieces;
  };
  /// In the order of the file.
  [[nodiscard]] const std::vector<safetensors::Entry>& entries() const { return entries_; }
  /// By entry, then in the order of the data.
  [[nodiscard]] const std::vector<BundlePiece>& pieces() const { return pieces_; }
  /// The bundles of a sender are in the order of the file.
  [[nodiscard]] const std::vector<Bundle>& bundles() const { return bundles_; }

 private:
  void add(std::size_t entry, RankId sender, std::size_t bytes);

  std::vector<safetensors::Entry> entries_;
  std::vector<BundlePiece> pieces_;
  std::vector<Bundle> bundles_;
  std::map<RankId, std::size_t> open_;  // the last bundle of each sender
};

/// Host memory for a rank's bundles, used again by the next save once nobody reads it any more.
class BundleMemory {
 public:
  /// Copies the rank's tensors; on a device with streams, returns when they are here. The result has a tensor of bytes
  /// for each of the rank's bundles, in their order. Throws InternalError if a tensor is not what the plan says.
  std::vector<at::Tensor> copy(const BundlePlan& plan, RankId rank, const std::vector<StockItem>& items);

 private:
  at::Tensor memory(std::size_t place, std::size_t bytes, bool pinned);

  struct Kept {
    at::Tensor memory;
    bool is_pinned = false;
  };
  std::vector<Kept> kept_;
};

}  // namespace stagecraft

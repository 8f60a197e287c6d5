#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>
#include <vector>

#include "beside_thread.h"

namespace stagecraft {

/// A parameter in a flat tensor.
struct Piece {
  std::string name;
  at::Tensor parameter;  // the module's own
  std::size_t master;    // index among the masters
  at::Tensor view;       // of the flat: what the parameter is while it is whole
  at::Tensor sum;        // of gradients in the masters' type, if the module's is another
  std::int64_t begin = 0;
  std::int64_t size = 0;

  /// The part of it that lies in [from, to) of the flat, relative to `from`.
  struct Part {
    std::int64_t offset;
    std::int64_t size;
  };
  [[nodiscard]] Part within(std::int64_t from, std::int64_t to) const {
    const std::int64_t first = std::max(begin, from);
    const std::int64_t last = std::min(begin + size, to);
    return first < last ? Part{first - from, last - first} : Part{0, 0};
  }
};

/// Parameters that the same stages use, one after the other in one tensor: whole, as modules compute with them, and
/// this replica's part of their masters. Each begins at a multiple of 64 bytes, as LibTorch's own tensors do.
class Flat {
 public:
  /// What its pieces have in common.
  struct Kind {
    std::vector<std::size_t> stages;  // that use them
    bool is_tied = false;
    at::ScalarType master_type = at::kFloat;
    at::ScalarType compute_type = at::kFloat;
    bool operator==(const Kind&) const = default;
  };
  explicit Flat(Kind kind) : kind_(std::move(kind)) {}

  /// Moves the parameters into the flat: they become views of it. The masters are cut into `parts`, of which this
  /// replica has number `part`; with one part and one type they are the parameters themselves.
  void lay_out(int parts, int part);

  [[nodiscard]] const Kind& kind() const { return kind_; }
  [[nodiscard]] bool is_mixed() const { return kind_.master_type != kind_.compute_type; }
  [[nodiscard]] bool is_of(std::size_t stage) const {
    return std::find(kind_.stages.begin(), kind_.stages.end(), stage) != kind_.stages.end();
  }
  /// Whether masters and parameters are the same memory.
  [[nodiscard]] bool is_one() const { return shard_.is_same(whole_); }
  [[nodiscard]] const at::Tensor& whole() const { return whole_; }
  [[nodiscard]] const at::Tensor& shard() const { return shard_; }
  /// Where a replica's part begins.
  [[nodiscard]] std::int64_t shard_begin(int part) const { return shard_.numel() * part; }
  /// This replica's part of a piece, as a vector; with one part, in the shape of the parameter. `shard`: a tensor like
  /// `shard()`.
  [[nodiscard]] at::Tensor part_of(const Piece& piece, const at::Tensor& shard) const;

  /// Frees the memory of the whole. Parameters are on the meta device then: they have a shape, and whoever reads them
  /// gets an error. Views that autograd has saved find the data again after `provide`.
  void free();
  void provide();
  [[nodiscard]] bool has_memory() const { return has_memory_; }

  /// Where the gradient of a piece is added up.
  [[nodiscard]] at::Tensor& gradient_of(Piece& piece) const {
    return is_mixed() ? piece.sum : piece.parameter.mutable_grad();
  }
  /// Adds new gradients of the parameters to the sums.
  void collect_gradients();
  void drop_gradients();

  std::vector<Piece> pieces;
  // Owned by Masters.
  std::size_t reduced_with = 0;  // the stage whose gradients are complete last
  int users = 0;                 // stages that have unsharded it
  bool is_stale = false;
  BesideThread::Ticket gathering = 0;  // 0: nothing to wait for
  double gather_start = 0;             // in seconds of the steady clock
  double gather_end = 0;

 private:
  Kind kind_;
  int parts_ = 1;
  int part_ = 0;
  at::Tensor whole_;
  at::Tensor shard_;
  bool has_memory_ = true;
};

/// The same memory, but not a view for autograd: optimizers change parameters and gradients in ways that views forbid.
at::Tensor plain(const at::Tensor& view);

/// A view of a piece of a flat tensor with the shape of `like`; keeps the order of its elements in memory, such as
/// channels_last.
at::Tensor shaped_like(const at::Tensor& flat, std::int64_t begin, const at::Tensor& like);

}  // namespace stagecraft

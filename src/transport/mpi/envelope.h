#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparse_form.h"
#include "stagecraft/transport/channel.h"

/// The first part of everything that one process sends to another: what it is, and all of it where it is small. Larger
/// parts ("blobs") follow as messages of their own, straight from and into the memory of tensors.
namespace stagecraft::mpi {

struct TensorForm {
  bool is_defined = false;
  bool wants_gradient = false;
  bool is_inline = false;  ///< In the envelope, not in a blob.
  bool is_meta = false;    ///< Without memory.
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> sizes;
  /// Of memory in another order than that of the dimensions, channels_last among them; empty: in that order.
  std::vector<std::int64_t> strides;

  /// That travel.
  [[nodiscard]] std::int64_t bytes() const;
};

struct Envelope {
  std::optional<Notice::Kind> notice;  ///< None: it is a message; otherwise the header is the notice's text.
  std::uint64_t step = 0;              ///< Steps settled by the sender; tells old messages from new ones.
  std::uint64_t sequence = 0;          ///< Of messages from this sender to this receiver; blobs are matched by it.
  Tag tag;
  std::int32_t about = -1;  ///< Of a notice.
  /// Too long for an envelope: the first blob.
  std::uint64_t header_blob = 0;
  std::string header;
  std::vector<TensorForm> forms;
  std::vector<SparseForm> sparse;  ///< What the dense tensors of `forms` are parts of.
  std::string inline_bytes;        ///< Of the inline tensors, one after the other.
};

/// An envelope is never longer.
inline constexpr std::size_t kEnvelopeBytes = std::size_t{16} << 10;
/// Tensors up to this size travel in the envelope while there is room.
inline constexpr std::int64_t kInlineBytes = 4096;

/// The tensor with its numbers as they are in memory, without gaps or overlaps: conjugates and negatives are computed.
/// The memory is the given one's where it can be.
at::Tensor as_memory(const at::Tensor& tensor);
/// `tensors` are as `as_memory` gives them. Decides what is inline; throws InvalidArgument when the forms alone do not
/// fit.
std::string encode(Envelope& envelope, const std::vector<at::Tensor>& tensors);
/// Throws InternalError for bytes that `encode` does not write.
Envelope decode(std::span<const char> bytes);

}  // namespace stagecraft::mpi

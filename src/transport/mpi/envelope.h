#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparse_form.h"
#include "stagecraft/transport/channel.h"

/// The first part of every message and notice between processes: describes it, and holds its small tensors. Larger
/// parts ("blobs") follow as MPI messages of their own, straight from and into the memory of tensors.
namespace stagecraft::mpi {

struct TensorForm {
  bool is_defined = false;
  bool wants_gradient = false;
  bool is_inline = false;  ///< In the envelope, not in a blob.
  bool is_meta = false;    ///< On the meta device.
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> sizes;
  /// Set if the tensor is not contiguous, such as channels_last; otherwise empty.
  std::vector<std::int64_t> strides;

  /// Size of the data; 0 if undefined or on the meta device.
  [[nodiscard]] std::int64_t bytes() const;
};

struct Envelope {
  std::optional<Notice::Kind> notice;  ///< Set for a notice, whose text is the header; none for a message.
  std::uint64_t step = 0;              ///< Steps settled by the sender; tells old messages from new ones.
  std::uint64_t sequence = 0;          ///< Number of the message from this sender to this receiver; matches its blobs.
  Tag tag;
  std::int32_t about = -1;  ///< Of a notice.
  /// Bytes of a header that is too long for the envelope, and the first blob instead; otherwise 0.
  std::uint64_t header_blob = 0;
  std::string header;
  std::vector<TensorForm> forms;
  std::vector<SparseForm> sparse;  ///< Sparse tensors whose parts are among `forms`.
  std::string inline_bytes;        ///< Data of the inline tensors, one after the other.
};

/// The largest size of an envelope.
inline constexpr std::size_t kEnvelopeBytes = std::size_t{16} << 10;
/// Tensors up to this size travel in the envelope while there is room.
inline constexpr std::int64_t kInlineBytes = 4096;

/// A tensor of the same values that is dense in memory, without gaps or overlaps; conjugates and negatives are
/// computed. Shares the memory of `tensor` where possible.
at::Tensor as_memory(const at::Tensor& tensor);
/// `tensors`: from `as_memory`. Decides which are inline; throws InvalidArgument when the forms alone do not fit.
std::string encode(Envelope& envelope, const std::vector<at::Tensor>& tensors);
/// Throws InternalError when `bytes` end too early.
Envelope decode(std::span<const char> bytes);

}  // namespace stagecraft::mpi

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "description.h"
#include "stagecraft/transport/channel.h"

/// The first part of every message and notice between processes, over MPI and c10d: describes it, and holds its small
/// tensors. Larger parts ("blobs") follow as messages of their own, straight from and into the memory of tensors.
namespace stagecraft::wire {

struct Envelope {
  std::optional<Notice::Kind> notice;  ///< Set for a notice, whose text is the header; none for a message.
  std::uint64_t step = 0;              ///< Steps settled by the sender; tells old messages from new ones.
  std::uint64_t sequence = 0;          ///< Number of the message from this sender to this receiver; matches its blobs.
  Tag tag;
  std::int32_t about = -1;  ///< Of a notice.
  /// Bytes of a header that is too long for the envelope, and the first blob instead; otherwise 0.
  std::uint64_t header_blob = 0;
  std::string header;
  bool header_is_form = false;  ///< A form that is too long for a description.
  /// What the message holds; null in a notice. `number`: where the receiver keeps it for later messages, or finds it if
  /// this envelope does not describe it.
  DescriptionPtr description;
  bool describes = true;
  bool may_repeat = false;  ///< Whether later messages may look the same. Not sent.
  std::uint16_t number = kNowhere;
  std::string inline_bytes;  ///< Those of the inline tensors, one after the other.

  /// Whether a tensor is not to be moved to the receiver's device; see Channel::kNoStep.
  [[nodiscard]] bool stays_on_host(const TensorForm& form) const { return step == Channel::kNoStep && form.is_on_host; }

  static constexpr std::uint16_t kNowhere = UINT16_MAX;
};

/// The largest size of an envelope.
inline constexpr std::size_t kEnvelopeBytes = std::size_t{16} << 10;
/// Tensors up to this size travel in the envelope while there is room.
inline constexpr std::int64_t kInlineBytes = 4096;

/// A tensor of the same values that is dense in memory, without gaps or overlaps; conjugates and negatives are
/// computed. Shares the memory of `tensor` where possible.
at::Tensor as_memory(const at::Tensor& tensor);
/// Describes tensors as `as_memory` gives them, and decides which of them are inline; a header of so many bytes is in
/// the envelope too, if there is room for it. Throws InvalidArgument when the description alone does not fit.
Description describe(std::shared_ptr<const std::string> form, const std::vector<at::Tensor>& tensors,
                     std::vector<SparseForm> sparse, std::size_t header);
/// Forms up to this size are part of a description.
inline constexpr std::size_t kFormBytes = 1024;
/// `tensors` are those of its description.
std::string encode(Envelope& envelope, const std::vector<at::Tensor>& tensors);
/// Throws InternalError when `bytes` end too early.
Envelope decode(std::span<const char> bytes);

}  // namespace stagecraft::wire

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sparse_form.h"

/// What a message holds, apart from the numbers in its tensors. One rank describes it to another once; as long as
/// messages look the same, an envelope only has the number of their description.
namespace stagecraft::wire {

struct TensorForm {
  bool is_defined = false;
  bool wants_gradient = false;
  bool is_inline = false;   ///< In the envelope, not in a blob.
  bool is_meta = false;     ///< Without memory.
  bool is_on_host = false;  ///< Where the sender has it.
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> sizes;
  /// Given for memory in another order than that of the dimensions, such as channels_last; otherwise empty.
  std::vector<std::int64_t> strides;

  static TensorForm of(const at::Tensor& tensor);
  /// Whether `of` would give the same. Takes no memory.
  [[nodiscard]] bool fits(const at::Tensor& tensor) const;
  /// How many bytes travel.
  [[nodiscard]] std::int64_t bytes() const;
};

struct Description {
  std::shared_ptr<const std::string> form;  ///< Message::form
  std::vector<TensorForm> tensors;
  std::vector<SparseForm> sparse;  ///< What the dense tensors are parts of.
};
using DescriptionPtr = std::shared_ptr<const Description>;

/// The last descriptions from one rank to another. Both of them keep one: envelopes arrive in the order in which they
/// were sent, so a number means the same to both.
class Descriptions {
 public:
  static constexpr std::uint16_t kKept = 64;

  /// Sender: the number of a description that fits.
  [[nodiscard]] std::optional<std::uint16_t> find(const std::shared_ptr<const std::string>& form,
                                                  const std::vector<at::Tensor>& tensors) const;
  /// Sender: takes the place of the oldest.
  std::uint16_t add(DescriptionPtr description);
  /// Receiver.
  void set(std::uint16_t number, DescriptionPtr description);
  /// Null if there is none.
  [[nodiscard]] DescriptionPtr at(std::uint16_t number) const;

 private:
  std::vector<DescriptionPtr> kept_;  // by number
  std::uint16_t next_ = 0;
};

}  // namespace stagecraft::wire

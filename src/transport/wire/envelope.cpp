#include "envelope.h"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <type_traits>

#include "stagecraft/core/error.h"

namespace stagecraft::wire {
namespace {

template <typename T>
void put(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

class Reader {
 public:
  explicit Reader(std::span<const char> bytes) : left_(bytes) {}

  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text(std::size_t size) {
    const auto bytes = take(size);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::int64_t> numbers(std::uint32_t count) {
    std::vector<std::int64_t> all;
    for (std::uint32_t i = 0; i < count; ++i) all.push_back(get<std::int64_t>());
    return all;
  }
  std::string rest() { return text(left_.size()); }

 private:
  std::span<const char> take(std::size_t size) {
    if (size > left_.size()) throw InternalError("an envelope between ranks is cut short");
    const auto taken = left_.first(size);
    left_ = left_.subspan(size);
    return taken;
  }
  std::span<const char> left_;
};

}  // namespace

at::Tensor as_memory(const at::Tensor& tensor) {
  if (tensor.is_meta()) return tensor;
  at::Tensor plain = tensor;
  if (tensor._is_zerotensor()) {
    plain = at::zeros(tensor.sizes(), tensor.options());
  } else {
    if (tensor.is_conj() || tensor.is_neg()) plain = plain.detach().resolve_conj().resolve_neg();
    if (!plain.is_non_overlapping_and_dense()) plain = plain.detach().contiguous();
  }
  return plain.is_same(tensor) ? tensor : plain.set_requires_grad(tensor.requires_grad());
}

namespace {

constexpr unsigned kDefined = 1, kWantsGradient = 2, kInline = 4, kMeta = 8, kHasStrides = 16, kOnHost = 32;

std::uint8_t flags_of(const TensorForm& form) {
  const unsigned flags = (form.is_defined ? kDefined : 0U) | (form.wants_gradient ? kWantsGradient : 0U) |
                         (form.is_inline ? kInline : 0U) | (form.is_meta ? kMeta : 0U) |
                         (form.strides.empty() ? 0U : kHasStrides) | (form.is_on_host ? kOnHost : 0U);
  return static_cast<std::uint8_t>(flags);
}

/// An upper bound of what it takes in an envelope.
std::size_t encoded_size(const TensorForm& form) { return 8 + 8 * (form.sizes.size() + form.strides.size()); }
std::size_t encoded_size(const SparseForm& form) { return 12 + 8 * form.sizes.size(); }

void put_all(std::string& out, const std::vector<std::int64_t>& numbers) {
  for (const std::int64_t number : numbers) put(out, number);
}

}  // namespace

namespace {

/// What an envelope takes besides inline tensors and header.
std::size_t fixed_size(const Description& description) {
  std::size_t size = 128 + (description.form ? description.form->size() : 0);
  for (const TensorForm& form : description.tensors) size += encoded_size(form);
  for (const SparseForm& form : description.sparse) size += encoded_size(form);
  return size;
}

void put_description(std::string& out, const Description& description) {
  put(out, static_cast<std::uint32_t>(description.tensors.size()));
  put(out, static_cast<std::uint32_t>(description.sparse.size()));
  put(out, description.form ? static_cast<std::uint32_t>(description.form->size()) : UINT32_MAX);
  if (description.form) out += *description.form;
  for (const TensorForm& form : description.tensors) {
    put(out, flags_of(form));
    put(out, form.type);
    put(out, static_cast<std::uint32_t>(form.sizes.size()));
    put_all(out, form.sizes);
    put_all(out, form.strides);
  }
  for (const SparseForm& form : description.sparse) {
    put(out, form.place);
    put(out, form.layout);
    put(out, form.is_coalesced);
    put(out, form.wants_gradient);
    put(out, static_cast<std::uint32_t>(form.sizes.size()));
    put_all(out, form.sizes);
  }
}

Description get_description(Reader& in) {
  Description description;
  const auto tensors = in.get<std::uint32_t>();
  const auto sparse = in.get<std::uint32_t>();
  const auto form_size = in.get<std::uint32_t>();
  if (form_size != UINT32_MAX) description.form = std::make_shared<const std::string>(in.text(form_size));
  for (std::uint32_t i = 0; i < tensors; ++i) {
    TensorForm& form = description.tensors.emplace_back();
    const unsigned flags = in.get<std::uint8_t>();
    form.is_defined = (flags & kDefined) != 0;
    form.wants_gradient = (flags & kWantsGradient) != 0;
    form.is_inline = (flags & kInline) != 0;
    form.is_meta = (flags & kMeta) != 0;
    form.is_on_host = (flags & kOnHost) != 0;
    form.type = in.get<at::ScalarType>();
    const auto dimensions = in.get<std::uint32_t>();
    form.sizes = in.numbers(dimensions);
    if ((flags & kHasStrides) != 0) form.strides = in.numbers(dimensions);
  }
  for (std::uint32_t i = 0; i < sparse; ++i) {
    SparseForm& form = description.sparse.emplace_back();
    form.place = in.get<std::uint32_t>();
    form.layout = in.get<at::Layout>();
    form.is_coalesced = in.get<bool>();
    form.wants_gradient = in.get<bool>();
    form.sizes = in.numbers(in.get<std::uint32_t>());
  }
  return description;
}

}  // namespace

Description describe(std::shared_ptr<const std::string> form, const std::vector<at::Tensor>& tensors,
                     std::vector<SparseForm> sparse, std::size_t header) {
  Description description{std::move(form), {}, std::move(sparse)};
  for (const at::Tensor& tensor : tensors) description.tensors.push_back(TensorForm::of(tensor));
  const std::size_t fixed = fixed_size(description);
  if (fixed > kEnvelopeBytes) {
    throw InvalidArgument("a message of " + std::to_string(tensors.size()) +
                          " tensors is more than one envelope describes: pass fewer values between stages");
  }
  std::size_t room = kEnvelopeBytes - fixed;
  if (header <= room) room -= header;
  for (TensorForm& own : description.tensors) {
    const std::int64_t bytes = own.bytes();
    if (!own.is_defined || bytes > kInlineBytes || static_cast<std::size_t>(bytes) > room) continue;
    if (bytes > 0 && !own.is_on_host) continue;  // one on the meta device has 0 bytes
    own.is_inline = true;
    room -= static_cast<std::size_t>(bytes);
  }
  return description;
}

std::string encode(Envelope& envelope, const std::vector<at::Tensor>& tensors) {
  static const Description nothing;
  const Description& description = envelope.description ? *envelope.description : nothing;
  const bool fits = envelope.header.size() <= kEnvelopeBytes - fixed_size(description);
  envelope.header_blob = fits ? 0 : envelope.header.size();
  std::string out;
  put(out, static_cast<std::uint8_t>(envelope.notice ? 1 + static_cast<int>(*envelope.notice) : 0));
  put(out, envelope.step);
  put(out, envelope.sequence);
  put(out, envelope.tag.kind);
  put(out, envelope.tag.from.value);
  put(out, envelope.tag.to.value);
  put(out, envelope.tag.microbatch.value);
  put(out, envelope.about);
  put(out, envelope.header_blob);
  put(out, envelope.header_is_form);
  put(out, envelope.number);
  put(out, envelope.describes);
  put(out, static_cast<std::uint32_t>(fits ? envelope.header.size() : 0));
  if (fits) out += envelope.header;
  if (envelope.describes) put_description(out, description);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorForm& form = description.tensors[i];
    if (!form.is_inline || form.bytes() == 0) continue;
    out.append(static_cast<const char*>(tensors[i].const_data_ptr()), static_cast<std::size_t>(form.bytes()));
  }
  return out;
}

Envelope decode(std::span<const char> bytes) {
  Reader in(bytes);
  Envelope envelope;
  if (const auto notice = in.get<std::uint8_t>()) envelope.notice = static_cast<Notice::Kind>(notice - 1);
  envelope.step = in.get<std::uint64_t>();
  envelope.sequence = in.get<std::uint64_t>();
  envelope.tag.kind = in.get<MessageKind>();
  envelope.tag.from = StageId(in.get<std::int32_t>());
  envelope.tag.to = StageId(in.get<std::int32_t>());
  envelope.tag.microbatch = MicrobatchId(in.get<std::int32_t>());
  envelope.about = in.get<std::int32_t>();
  envelope.header_blob = in.get<std::uint64_t>();
  envelope.header_is_form = in.get<bool>();
  envelope.number = in.get<std::uint16_t>();
  envelope.describes = in.get<bool>();
  envelope.header = in.text(in.get<std::uint32_t>());
  if (envelope.describes) envelope.description = std::make_shared<const Description>(get_description(in));
  envelope.inline_bytes = in.rest();
  return envelope;
}

}  // namespace stagecraft::wire

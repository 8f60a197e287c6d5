#include "envelope.h"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <type_traits>

#include "stagecraft/core/error.h"

namespace stagecraft::mpi {
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

std::int64_t TensorForm::bytes() const {
  auto total = static_cast<std::int64_t>(c10::elementSize(type));
  for (const std::int64_t size : sizes) total *= size;
  return is_defined && !is_meta ? total : 0;
}

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

constexpr unsigned kDefined = 1, kWantsGradient = 2, kInline = 4, kMeta = 8, kHasStrides = 16;

std::uint8_t flags_of(const TensorForm& form) {
  const unsigned flags = (form.is_defined ? kDefined : 0U) | (form.wants_gradient ? kWantsGradient : 0U) |
                         (form.is_inline ? kInline : 0U) | (form.is_meta ? kMeta : 0U) |
                         (form.strides.empty() ? 0U : kHasStrides);
  return static_cast<std::uint8_t>(flags);
}

/// Upper bound of the bytes of a form in an envelope.
std::size_t encoded_size(const TensorForm& form) { return 8 + 8 * (form.sizes.size() + form.strides.size()); }
std::size_t encoded_size(const SparseForm& form) { return 12 + 8 * form.sizes.size(); }

TensorForm form_of(const at::Tensor& tensor) {
  TensorForm form;
  if (!tensor.defined()) return form;
  form.is_defined = true;
  form.wants_gradient = tensor.requires_grad();
  form.is_meta = tensor.is_meta();
  form.type = tensor.scalar_type();
  form.sizes = tensor.sizes().vec();
  if (!tensor.is_contiguous()) form.strides = tensor.strides().vec();
  return form;
}

void put_all(std::string& out, const std::vector<std::int64_t>& numbers) {
  for (const std::int64_t number : numbers) put(out, number);
}

}  // namespace

std::string encode(Envelope& envelope, const std::vector<at::Tensor>& tensors) {
  envelope.forms.clear();
  std::size_t fixed = 128;
  for (const at::Tensor& tensor : tensors) fixed += encoded_size(envelope.forms.emplace_back(form_of(tensor)));
  for (const SparseForm& form : envelope.sparse) fixed += encoded_size(form);
  if (fixed > kEnvelopeBytes) {
    throw InvalidArgument("a message of " + std::to_string(tensors.size()) +
                          " tensors is more than one envelope describes: pass fewer values between stages");
  }
  std::size_t room = kEnvelopeBytes - fixed;
  envelope.header_blob = envelope.header.size() > room ? envelope.header.size() : 0;
  if (envelope.header_blob == 0) room -= envelope.header.size();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TensorForm& form = envelope.forms[i];
    const std::int64_t bytes = form.bytes();
    if (!form.is_defined || bytes > kInlineBytes || static_cast<std::size_t>(bytes) > room) continue;
    if (bytes > 0 && !tensors[i].is_cpu()) continue;  // meta tensors have 0 bytes
    form.is_inline = true;
    room -= static_cast<std::size_t>(bytes);
  }

  std::string out;
  out.reserve(kEnvelopeBytes - room);
  put(out, static_cast<std::uint8_t>(envelope.notice ? 1 + static_cast<int>(*envelope.notice) : 0));
  put(out, envelope.step);
  put(out, envelope.sequence);
  put(out, envelope.tag.kind);
  put(out, envelope.tag.from.value);
  put(out, envelope.tag.to.value);
  put(out, envelope.tag.microbatch.value);
  put(out, envelope.about);
  put(out, envelope.header_blob);
  put(out, static_cast<std::uint32_t>(envelope.header_blob > 0 ? 0 : envelope.header.size()));
  put(out, static_cast<std::uint32_t>(envelope.forms.size()));
  put(out, static_cast<std::uint32_t>(envelope.sparse.size()));
  if (envelope.header_blob == 0) out += envelope.header;
  for (const TensorForm& form : envelope.forms) {
    put(out, flags_of(form));
    put(out, form.type);
    put(out, static_cast<std::uint32_t>(form.sizes.size()));
    put_all(out, form.sizes);
    put_all(out, form.strides);
  }
  for (const SparseForm& form : envelope.sparse) {
    put(out, form.place);
    put(out, form.layout);
    put(out, form.is_coalesced);
    put(out, form.wants_gradient);
    put(out, static_cast<std::uint32_t>(form.sizes.size()));
    put_all(out, form.sizes);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorForm& form = envelope.forms[i];
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
  const auto header = in.get<std::uint32_t>();
  const auto forms = in.get<std::uint32_t>();
  const auto sparse = in.get<std::uint32_t>();
  envelope.header = in.text(header);
  for (std::uint32_t i = 0; i < forms; ++i) {
    TensorForm& form = envelope.forms.emplace_back();
    const unsigned flags = in.get<std::uint8_t>();
    form.is_defined = (flags & kDefined) != 0;
    form.wants_gradient = (flags & kWantsGradient) != 0;
    form.is_inline = (flags & kInline) != 0;
    form.is_meta = (flags & kMeta) != 0;
    form.type = in.get<at::ScalarType>();
    const auto dimensions = in.get<std::uint32_t>();
    form.sizes = in.numbers(dimensions);
    if ((flags & kHasStrides) != 0) form.strides = in.numbers(dimensions);
  }
  for (std::uint32_t i = 0; i < sparse; ++i) {
    SparseForm& form = envelope.sparse.emplace_back();
    form.place = in.get<std::uint32_t>();
    form.layout = in.get<at::Layout>();
    form.is_coalesced = in.get<bool>();
    form.wants_gradient = in.get<bool>();
    form.sizes = in.numbers(in.get<std::uint32_t>());
  }
  envelope.inline_bytes = in.rest();
  return envelope;
}

}  // namespace stagecraft::mpi

#include "envelope.h"

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
  return is_defined ? total : 0;
}

std::string encode(Envelope& envelope, const std::vector<at::Tensor>& tensors) {
  envelope.forms.clear();
  std::size_t fixed = 128;
  for (const at::Tensor& tensor : tensors) {
    TensorForm& form = envelope.forms.emplace_back();
    fixed += 8;
    if (!tensor.defined()) continue;
    form = {true, tensor.requires_grad(), false, tensor.scalar_type(), tensor.sizes().vec()};
    fixed += 8 * form.sizes.size();
  }
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
    if (bytes > 0 && !tensors[i].is_cpu()) continue;
    form.is_inline = true;
    room -= static_cast<std::size_t>(bytes);
  }

  std::string out;
  out.reserve(kEnvelopeBytes);
  put(out, envelope.kind);
  put(out, envelope.step);
  put(out, envelope.sequence);
  put(out, envelope.tag.channel);
  put(out, envelope.tag.from.value);
  put(out, envelope.tag.to.value);
  put(out, envelope.tag.microbatch.value);
  put(out, envelope.about);
  put(out, envelope.header_blob);
  put(out, static_cast<std::uint32_t>(envelope.header_blob > 0 ? 0 : envelope.header.size()));
  put(out, static_cast<std::uint32_t>(envelope.forms.size()));
  if (envelope.header_blob == 0) out += envelope.header;
  for (const TensorForm& form : envelope.forms) {
    put(out, form.is_defined);
    put(out, form.wants_gradient);
    put(out, form.is_inline);
    put(out, form.type);
    put(out, static_cast<std::uint32_t>(form.sizes.size()));
    for (const std::int64_t size : form.sizes) put(out, size);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!envelope.forms[i].is_inline || tensors[i].numel() == 0) continue;
    const at::Tensor contiguous = tensors[i].detach().contiguous();
    out.append(static_cast<const char*>(contiguous.const_data_ptr()), contiguous.nbytes());
  }
  return out;
}

Envelope decode(std::span<const char> bytes) {
  Reader in(bytes);
  Envelope envelope;
  envelope.kind = in.get<Kind>();
  envelope.step = in.get<std::uint64_t>();
  envelope.sequence = in.get<std::uint64_t>();
  envelope.tag.channel = in.get<Channel>();
  envelope.tag.from = StageId(in.get<std::int32_t>());
  envelope.tag.to = StageId(in.get<std::int32_t>());
  envelope.tag.microbatch = MicrobatchId(in.get<std::int32_t>());
  envelope.about = in.get<std::int32_t>();
  envelope.header_blob = in.get<std::uint64_t>();
  const auto header = in.get<std::uint32_t>();
  const auto forms = in.get<std::uint32_t>();
  envelope.header = in.text(header);
  for (std::uint32_t i = 0; i < forms; ++i) {
    TensorForm& form = envelope.forms.emplace_back();
    form.is_defined = in.get<bool>();
    form.wants_gradient = in.get<bool>();
    form.is_inline = in.get<bool>();
    form.type = in.get<at::ScalarType>();
    const auto dimensions = in.get<std::uint32_t>();
    for (std::uint32_t d = 0; d < dimensions; ++d) form.sizes.push_back(in.get<std::int64_t>());
  }
  envelope.inline_bytes = in.rest();
  return envelope;
}

}  // namespace stagecraft::mpi

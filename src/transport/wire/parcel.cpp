#include "parcel.h"

#include <ATen/ATen.h>

#include "stagecraft/core/error.h"

namespace stagecraft::wire {

void find_description(const Descriptions& earlier, Envelope& envelope, Message& message,
                      std::vector<SparseForm> sparse) {
  if (message.form && message.form->size() > kFormBytes && envelope.header.empty()) {
    envelope.header = *message.form;
    envelope.header_is_form = true;
    message.form = nullptr;
  }
  envelope.may_repeat = !envelope.notice && envelope.header.empty() && sparse.empty();
  if (const auto number = envelope.may_repeat ? earlier.find(message.form, message.tensors) : std::nullopt) {
    envelope.number = *number;
    envelope.describes = false;
    envelope.description = earlier.at(*number);
    return;
  }
  envelope.description = std::make_shared<const Description>(
      describe(std::move(message.form), message.tensors, std::move(sparse), envelope.header.size()));
}

void look_up_description(Descriptions& earlier, Envelope& envelope) {
  if (envelope.number == Envelope::kNowhere) return;
  if (envelope.describes) return earlier.set(envelope.number, envelope.description);
  envelope.description = earlier.at(envelope.number);
  if (!envelope.description) throw InternalError("an envelope between ranks has a number that none had before");
}

Message to_message(Envelope envelope, std::vector<at::Tensor> tensors, const std::optional<at::Device>& device) {
  const Description& description = *envelope.description;
  Message message{std::move(tensors), std::move(envelope.header), description.form};
  if (envelope.header_is_form) {
    message.form = std::make_shared<const std::string>(std::exchange(message.header, {}));
  }
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    at::Tensor& tensor = message.tensors[i];
    if (!tensor.defined()) continue;
    const bool stays = tensor.is_meta() || envelope.stays_on_host(description.tensors[i]);
    if (device && tensor.device() != *device && !stays) {
      tensor = tensor.to(*device, /*non_blocking=*/!device->is_cpu());  // what arrives on the host is read at once
    }
    if (description.tensors[i].wants_gradient) tensor.set_requires_grad(true);
  }
  put_together(message.tensors, description.sparse);
  return message;
}

}  // namespace stagecraft::wire

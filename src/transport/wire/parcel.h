#pragma once

#include <optional>
#include <vector>

#include "envelope.h"

/// From a message to its envelope, and back.
namespace stagecraft::wire {

/// Sets what describes the message: a message of dense tensors without a header is described once, and later ones that
/// look like it get its number. `sparse`: what `take_apart` returned. `earlier`: what this rank has described to the
/// receiver; the caller adds to it what `envelope.may_repeat && envelope.describes`.
void find_description(const Descriptions& earlier, Envelope& envelope, Message& message,
                      std::vector<SparseForm> sparse);

/// Finds the description of an envelope that has arrived. Called for every envelope in the order in which they arrive.
/// `earlier`: what the sender has described to this rank.
void look_up_description(Descriptions& earlier, Envelope& envelope);

/// The message of an envelope. `tensors` are those of its description; they are moved to `device`, if any, unless they
/// stay on the host.
Message to_message(Envelope envelope, std::vector<at::Tensor> tensors, const std::optional<at::Device>& device);

}  // namespace stagecraft::wire

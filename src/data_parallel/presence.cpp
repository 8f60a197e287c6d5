#include "presence.h"

#include "stagecraft/core/error.h"

namespace stagecraft {

void Presence::add(const std::string& name, const at::Tensor& gradient) {
  some_ += gradient.defined() ? '1' : '0';
  if (!gradient.defined() || !gradient.is_sparse()) return;
  throw InvalidArgument("the gradient of " + name +
                        " is sparse, and replicas average dense ones: make the layer with sparse(false)");
}

void Presence::share(Group& peers) {
  if (some_.empty()) return;
  for (const Message& message : peers.all_gather(Message{{}, some_})) {
    for (std::size_t i = 0; i < some_.size(); ++i) {
      if (message.header.at(i) == '1') some_[i] = '1';
    }
  }
}

}  // namespace stagecraft

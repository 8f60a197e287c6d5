#include "stagecraft/transport/message.h"

namespace stagecraft {

std::string to_text(const Tag& tag) {
  const std::string path = "from stage " + std::to_string(tag.from.value) + " to stage " + std::to_string(tag.to.value);
  const std::string microbatch = "microbatch " + std::to_string(tag.microbatch.value);
  switch (tag.kind) {
    case MessageKind::kForward:
      return "the activation of " + microbatch + " " + path;
    case MessageKind::kBackward:
      return "the gradient of " + microbatch + " " + path;
    case MessageKind::kCollective:
      break;
  }
  const int group = tag.from.value;
  return "round " + std::to_string(tag.to.value) + " of collective " + std::to_string(tag.microbatch.value) + " of " +
         (group < 0 ? "Stagecraft's group " + std::to_string(-group) : "group " + std::to_string(group));
}

std::string to_text(const Purpose& purpose) {
  if (!purpose.what.empty()) return std::string(purpose.what);
  return "the " + std::string(purpose.call) + " of " + std::string(purpose.group);
}

}  // namespace stagecraft

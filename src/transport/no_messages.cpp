#include "stagecraft/transport/no_messages.h"

#include <utility>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

thread_local const char* forbidden = nullptr;  // why

}  // namespace

NoMessages::NoMessages(const char* why) : before_(std::exchange(forbidden, why)) {}
NoMessages::~NoMessages() { forbidden = before_; }

void NoMessages::check() {
  if (forbidden != nullptr) throw InvalidArgument(forbidden);
}

}  // namespace stagecraft

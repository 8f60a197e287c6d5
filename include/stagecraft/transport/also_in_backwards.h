#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

namespace stagecraft {

namespace detail {

/// What is carried. All is debug info of a kind that nothing else uses, because LibTorch has no public kinds in all
/// versions. LibTorch finds the innermost of a kind, so each has the one around it, of whatever type.
struct InBackwards : c10::DebugInfoBase {
  static const InBackwards* innermost() {
    return dynamic_cast<const InBackwards*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::TEST_INFO_2));
  }
  const InBackwards* const outer = innermost();  // lives as long: a thread that has this one has both
};

}  // namespace detail

/// While it lives, this thread has something, and so do the threads that run its backwards: autograd has other threads
/// for those on a GPU, and LibTorch takes its debug info there, but no thread_local. The innermost one counts. Those of
/// a thread, and other debug info, end in the reverse order. `Name` tells those of one type apart.
template <typename What, typename Name = What>
class AlsoInBackwards {
 public:
  /// `what` may be null: nothing.
  explicit AlsoInBackwards(What* what) : guard_(c10::DebugInfoKind::TEST_INFO_2, std::make_shared<Own>(what)) {}

  /// What this thread has; null if nothing.
  static What* current() {
    for (const detail::InBackwards* one = detail::InBackwards::innermost(); one != nullptr; one = one->outer) {
      if (const auto* own = dynamic_cast<const Own*>(one)) return own->what;
    }
    return nullptr;
  }

 private:
  struct Own : detail::InBackwards {
    explicit Own(What* that) : what(that) {}
    What* const what;
  };

  c10::DebugInfoGuard guard_;
};

}  // namespace stagecraft

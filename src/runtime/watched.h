#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

namespace stagecraft {

/// Who watches. LibTorch takes it along to threads that run a backward, as it does with callbacks, which carry no
/// state.
template <typename Watch>
struct Watched : c10::DebugInfoBase {
  explicit Watched(Watch* by) : watch(by) {}
  Watch* watch;
};

// Kinds that nothing else uses: LibTorch has no public ones in all versions.
inline const c10::DebugInfoKind kWatchesCapture = c10::DebugInfoKind::MOBILE_RUNTIME_INFO;
inline const c10::DebugInfoKind kWatchesUses = c10::DebugInfoKind::TEST_INFO;

/// Who watches the operations of this thread; null if nobody does.
template <typename Watch>
Watch* watch_of(c10::DebugInfoKind kind) {
  const auto* own = dynamic_cast<Watched<Watch>*>(c10::ThreadLocalDebugInfo::get(kind));
  return own != nullptr ? own->watch : nullptr;
}

}  // namespace stagecraft

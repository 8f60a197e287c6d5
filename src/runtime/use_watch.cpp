#include "use_watch.h"

#include <algorithm>

#include "tensors_in.h"
#include "watched.h"

namespace stagecraft {

UseWatch::UseWatch(const std::vector<WeakMemory>& memory)
    : watched_(kWatchesUses, std::make_shared<Watched<UseWatch>>(this)) {
  for (const WeakMemory& one : memory) memory_.push_back(one._unsafe_get_target());
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&begin).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

UseWatch::~UseWatch() { at::removeCallback(handle_); }

std::unique_ptr<at::ObserverContext> UseWatch::begin(const at::RecordFunction& operation) {
  UseWatch* own = watch_of<UseWatch>(kWatchesUses);
  if (own == nullptr || !own->found_.empty()) return nullptr;
  for (const c10::IValue& input : operation.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      const auto& all = own->memory_;
      if (std::find(all.begin(), all.end(), memory_of(tensor)) != all.end()) own->found_ = operation.name();
    });
  }
  return nullptr;
}

}  // namespace stagecraft

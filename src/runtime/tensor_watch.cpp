#include "tensor_watch.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "stagecraft/core/error.h"
#include "tensors_in.h"

namespace stagecraft {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

struct TensorWatch::Inputs : at::ObserverContext {
  std::vector<const c10::StorageImpl*> memories;
};

TensorWatch* TensorWatch::active_ = nullptr;

TensorWatch::TensorWatch(c10::DeviceType device, std::function<bool(const c10::StorageImpl*)> is_gradient)
    : device_(device), is_gradient_(std::move(is_gradient)) {
  if (std::exchange(active_, this) != nullptr) throw InternalError("two steps are captured at once");
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

TensorWatch::~TensorWatch() {
  at::removeCallback(handle_);
  active_ = nullptr;
}

void TensorWatch::enter(std::size_t lane, std::size_t order) {
  lane_ = lane;
  order_ = order;
}

std::unique_ptr<at::ObserverContext> TensorWatch::begin(const at::RecordFunction& operation) {
  auto inputs = std::make_unique<Inputs>();
  if (active_ == nullptr || !active_->found_.empty()) return inputs;
  const std::optional<c10::FunctionSchema> schema = operation.operator_schema();
  std::size_t index = 0;
  for (const c10::IValue& input : operation.inputs()) {
    const bool changes = changes_argument(schema, index++);
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      active_->use(tensor, changes, operation);
      if (tensor.has_storage()) inputs->memories.push_back(storage_of(tensor));
    });
  }
  return inputs;
}

void TensorWatch::end(const at::RecordFunction& operation, at::ObserverContext* inputs) {
  if (active_ == nullptr || !active_->found_.empty()) return;
  for (const c10::IValue& output : operation.outputs()) {
    for_each_tensor(output, [&](const at::Tensor& tensor) { active_->compute(tensor, *static_cast<Inputs*>(inputs)); });
  }
}

void TensorWatch::use(const at::Tensor& tensor, bool changes, const at::RecordFunction& operation) {
  if (tensor.device().type() != device_) return;
  if (!tensor.has_storage()) return report("is not one piece of memory", operation);
  const c10::StorageImpl* memory = storage_of(tensor);
  if (const auto known = computed_.find(memory); known != computed_.end()) {
    if (known->second.lane == lane_ && known->second.order == order_) return;
    if (is_gradient_(memory)) {
      if (known->second.order != order_) report("is a gradient that several stages add to", operation);
    } else if (known->second.lane != lane_) {
      report("was computed for one microbatch and is used for another", operation);
    }
    return;
  }
  Given& given = given_.try_emplace(memory, Given{tensor.storage().getWeakStorageImpl(), order_}).first->second;
  given.is_shared |= given.order != order_;
  given.is_changed |= changes;
  if (given.is_shared && given.is_changed) report("is used by several stages and changed in place", operation);
}

void TensorWatch::compute(const at::Tensor& tensor, const Inputs& inputs) {
  if (tensor.device().type() != device_ || !tensor.has_storage()) return;
  const c10::StorageImpl* memory = storage_of(tensor);
  const bool is_input = std::find(inputs.memories.begin(), inputs.memories.end(), memory) != inputs.memories.end();
  if (is_input || given_.contains(memory)) return;
  computed_.emplace(memory, Computed{tensor.storage().getWeakStorageImpl(), lane_, order_});
}

void TensorWatch::report(const std::string& what, const at::RecordFunction& operation) {
  found_ = std::string("a tensor that ") + operation.name() + " takes " + what;
}

}  // namespace stagecraft

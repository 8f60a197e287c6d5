#include "capture_memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "tensors_in.h"

namespace stagecraft {
namespace {

thread_local CaptureMemory* capturing = nullptr;
thread_local UseWatch* watching = nullptr;

const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

CaptureMemory::CaptureMemory(c10::DeviceType device, std::function<bool(const c10::StorageImpl*)> is_kept)
    : device_(device), is_kept_(std::move(is_kept)), outer_(std::exchange(capturing, this)) {
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

CaptureMemory::~CaptureMemory() {
  at::removeCallback(handle_);
  capturing = outer_;
}

std::unique_ptr<at::ObserverContext> CaptureMemory::begin(const at::RecordFunction& operation) {
  if (capturing == nullptr) return nullptr;
  CaptureMemory& own = *capturing;
  for (const c10::IValue& input : operation.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      const c10::StorageImpl* memory = memory_of(tensor);
      if (memory == nullptr || tensor.device().type() != own.device_) return;
      if (own.made_.contains(memory) || own.given_.contains(memory) || own.is_kept_(memory)) return;
      own.given_.emplace(memory, tensor.storage());
    });
  }
  return nullptr;
}

void CaptureMemory::end(const at::RecordFunction& operation, at::ObserverContext* /*context*/) {
  if (capturing == nullptr) return;
  CaptureMemory& own = *capturing;
  for (const c10::IValue& output : operation.outputs()) {
    for_each_tensor(output, [&](const at::Tensor& tensor) {
      const c10::StorageImpl* memory = memory_of(tensor);
      if (memory == nullptr || tensor.device().type() != own.device_) return;
      if (own.given_.contains(memory) || own.is_kept_(memory)) return;
      own.made_.try_emplace(memory, tensor.storage().getWeakStorageImpl());
    });
  }
}

std::vector<c10::Storage> CaptureMemory::take_given() {
  std::vector<c10::Storage> all;
  for (auto& [memory, storage] : given_) all.push_back(std::move(storage));
  given_.clear();
  return all;
}

std::vector<WeakMemory> CaptureMemory::made() const {
  std::vector<WeakMemory> all;
  for (const auto& [memory, weak] : made_) {
    if (!weak.expired()) all.push_back(weak);
  }
  return all;
}

std::vector<c10::DataPtr> move_out(const std::vector<WeakMemory>& made) {
  std::vector<c10::DataPtr> left;
  for (const WeakMemory& weak : made) {
    const c10::intrusive_ptr<c10::StorageImpl> memory = weak.lock();
    if (!memory || memory->nbytes() == 0) continue;
    const auto bytes = static_cast<std::int64_t>(memory->nbytes());
    const auto options = at::TensorOptions(at::kByte).device(memory->device());
    const at::Tensor before = at::empty({0}, options).set_(c10::Storage(memory), 0, {bytes}, {1});
    at::Tensor after = before.clone();
    left.push_back(
        memory->set_data_ptr(std::move(after.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks())));
  }
  return left;
}

UseWatch::UseWatch(const std::vector<WeakMemory>& memory) : outer_(std::exchange(watching, this)) {
  for (const WeakMemory& one : memory) memory_.push_back(one._unsafe_get_target());
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&begin).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

UseWatch::~UseWatch() {
  at::removeCallback(handle_);
  watching = outer_;
}

std::unique_ptr<at::ObserverContext> UseWatch::begin(const at::RecordFunction& operation) {
  if (watching == nullptr || !watching->found_.empty()) return nullptr;
  for (const c10::IValue& input : operation.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      const auto& all = watching->memory_;
      if (std::find(all.begin(), all.end(), memory_of(tensor)) != all.end()) watching->found_ = operation.name();
    });
  }
  return nullptr;
}

}  // namespace stagecraft

#include "capture_memory.h"

#include <algorithm>
#include <utility>

#include "tensors_in.h"
#include "watched.h"

namespace stagecraft {
namespace {

/// Not a function of autograd, which calls operators.
bool is_operator(const at::RecordFunction& operation) { return operation.operator_name().has_value(); }

}  // namespace

CaptureMemory::CaptureMemory(c10::DeviceType device, std::function<bool()> is_captured,
                             std::function<bool(const c10::StorageImpl*)> is_kept)
    : device_(device),
      is_captured_(std::move(is_captured)),
      is_kept_(std::move(is_kept)),
      watched_(kWatchesCapture, std::make_shared<Watched<CaptureMemory>>(this)) {
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

CaptureMemory::~CaptureMemory() { at::removeCallback(handle_); }

std::unique_ptr<at::ObserverContext> CaptureMemory::begin(const at::RecordFunction& operation) {
  CaptureMemory* own = watch_of<CaptureMemory>(kWatchesCapture);
  if (own == nullptr) return nullptr;
  if (is_operator(operation)) ++own->depth_;
  if (!own->is_captured_()) return nullptr;
  const std::optional<c10::FunctionSchema> schema = operation.operator_schema();
  std::size_t index = 0;
  for (const c10::IValue& input : operation.inputs()) {
    const bool changes = changes_argument(schema, index++);
    for_each_tensor(input, [&](const at::Tensor& tensor) { own->take(tensor, changes); });
  }
  return nullptr;
}

void CaptureMemory::end(const at::RecordFunction& operation, at::ObserverContext* /*context*/) {
  CaptureMemory* own = watch_of<CaptureMemory>(kWatchesCapture);
  if (own == nullptr) return;
  if (is_operator(operation)) --own->depth_;
  if (!own->is_captured_()) return;
  const std::optional<c10::FunctionSchema> schema = operation.operator_schema();
  std::size_t index = 0;
  for (const c10::IValue& output : operation.outputs()) {
    const bool is_view = returns_view(schema, index++);  // also of what has memory that nobody sees, such as sparse
    for_each_tensor(output, [&](const at::Tensor& tensor) { is_view ? own->take(tensor, false) : own->make(tensor); });
  }
}

void CaptureMemory::take(const at::Tensor& tensor, bool changes) {
  const c10::StorageImpl* memory = memory_of(tensor);
  if (memory == nullptr || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return;  // that is in the code
  if (is_on_host(tensor) && depth_ == 1 && !made_on_host_.contains(memory)) {
    given_on_host_.try_emplace(memory, GivenMemory{hold(tensor.storage())});
    const auto is_it = [&](const HostNumber& one) { return one.is(tensor); };
    if (tensor.dim() == 0 && std::none_of(numbers_.begin(), numbers_.end(), is_it)) numbers_.emplace_back(tensor);
  }
  if (tensor.device().type() != device_ || made_.contains(memory) || is_kept_(memory)) return;
  GivenMemory& given = given_.try_emplace(memory, GivenMemory{hold(tensor.storage()), depth_ > 1}).first->second;
  given.is_number = given.is_number || tensor.dim() == 0;
  given.is_changed = given.is_changed || changes;
  if (depth_ > 1) return;
  const auto is_known = [&](const GivenTensor& one) { return one.is(tensor); };
  if (std::none_of(tensors_.begin(), tensors_.end(), is_known)) tensors_.emplace_back(tensor);
  if (!tensor.is_leaf() || !tensor.requires_grad()) return;
  const auto is_it = [&](const auto& leaf) { return leaf.first.is_same(tensor); };
  if (std::none_of(leaves_.begin(), leaves_.end(), is_it)) leaves_.emplace_back(tensor, tensor.grad());
}

void CaptureMemory::make(const at::Tensor& tensor) {
  const c10::StorageImpl* memory = memory_of(tensor);
  if (memory == nullptr) return;
  if (is_on_host(tensor) && !given_on_host_.contains(memory)) {
    made_on_host_.try_emplace(memory, tensor.storage().getWeakStorageImpl());
  }
  if (tensor.device().type() != device_ || is_kept_(memory)) return;
  if (const auto given = given_.find(memory); given != given_.end()) {
    if (!given->second.is_inner) return;
    given_.erase(given);  // an operation has made it for another one to write
  }
  made_.try_emplace(memory, tensor.storage().getWeakStorageImpl());
}

std::vector<GivenMemory> CaptureMemory::take_given() {
  std::vector<GivenMemory> all;
  for (auto& [memory, given] : given_) {
    given.begin = memory->data();
    all.push_back(std::move(given));
  }
  given_.clear();
  for (auto& [memory, given] : given_on_host_) {
    given.begin = memory->data();
    given.is_inner = given.is_ours_alone();  // made and dropped in the code, where nothing tells
    all.push_back(std::move(given));
  }
  given_on_host_.clear();
  return all;
}

std::vector<GivenTensor> CaptureMemory::take_tensors() {
  std::erase_if(tensors_, [](const GivenTensor& one) { return one.is_gone(); });
  return std::exchange(tensors_, {});
}

std::vector<HostNumber> CaptureMemory::take_numbers() {
  const bool keeps_new_ones =
      std::any_of(made_on_host_.begin(), made_on_host_.end(), [](const auto& made) { return !made.second.expired(); });
  if (!keeps_new_ones) std::erase_if(numbers_, [](const HostNumber& one) { return one.was_let_go(); });
  return std::exchange(numbers_, {});
}

bool CaptureMemory::has_unknown_leaves() {
  std::erase_if(leaves_, [](const auto& leaf) { return holders_of(leaf.first) == 1; });
  return !leaves_.empty();
}

void CaptureMemory::reset_unknown_leaves() const {
  for (const auto& [leaf, gradient] : leaves_) leaf.mutable_grad() = gradient;
}

std::vector<WeakMemory> CaptureMemory::made(bool also_on_host) const {
  std::vector<WeakMemory> all;
  const auto add = [&](const auto& known) {
    for (const auto& [memory, weak] : known) {
      if (!weak.expired()) all.push_back(weak);
    }
  };
  add(made_);
  if (also_on_host) add(made_on_host_);
  return all;
}

}  // namespace stagecraft

#include "capture_memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "tensors_in.h"

namespace stagecraft {
namespace {

/// Who watches. LibTorch takes it along to threads that run a backward, as it does with callbacks, which carry no
/// state.
template <typename Watch>
struct Watched : c10::DebugInfoBase {
  explicit Watched(Watch* by) : watch(by) {}
  Watch* watch;
};

// Kinds that nothing else uses: LibTorch has no public ones in all versions.
const c10::DebugInfoKind kCaptures = c10::DebugInfoKind::MOBILE_RUNTIME_INFO;
const c10::DebugInfoKind kUses = c10::DebugInfoKind::TEST_INFO;

template <typename Watch>
Watch* watch_of(c10::DebugInfoKind kind) {
  const auto* own = dynamic_cast<Watched<Watch>*>(c10::ThreadLocalDebugInfo::get(kind));
  return own != nullptr ? own->watch : nullptr;
}

const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

at::Tensor bytes_of(const c10::intrusive_ptr<c10::StorageImpl>& memory) {
  const auto options = at::TensorOptions(at::kByte).device(memory->device());
  return at::empty({0}, options).set_(c10::Storage(memory), 0, {static_cast<std::int64_t>(memory->nbytes())}, {1});
}

/// Not a function of autograd, which calls operators.
bool is_operator(const at::RecordFunction& operation) { return operation.operator_name().has_value(); }

}  // namespace

std::size_t holders_of(const at::Tensor& tensor) {
  return tensor.use_count() - (tensor.unsafeGetTensorImpl()->pyobj_slot()->has_unique_reference() ? 1 : 0);
}

std::size_t holders_of(const c10::Storage& storage) {
  return storage.use_count() - (storage.unsafeGetStorageImpl()->pyobj_slot()->has_unique_reference() ? 1 : 0);
}

HeldMemory hold(const c10::Storage& storage) {
  struct All {
    std::mutex mutex;
    std::unordered_map<const c10::StorageImpl*, std::weak_ptr<const c10::Storage>> held;
  };
  static All& all = *new All;  // until the process ends
  const c10::StorageImpl* memory = storage.unsafeGetStorageImpl();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<const c10::Storage>& known = all.held[memory];
  if (HeldMemory held = known.lock()) return held;
  HeldMemory held(new c10::Storage(storage), [memory](const c10::Storage* last) {
    {
      const std::lock_guard locked(all.mutex);
      const auto own = all.held.find(memory);
      if (own != all.held.end() && own->second.expired()) all.held.erase(own);  // unless it is held anew already
    }
    delete last;
  });
  known = held;
  return held;
}

HostNumber::HostNumber(const at::Tensor& tensor)
    : storage_(hold(tensor.storage())),
      begin_(static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize()),
      bytes_(tensor.itemsize()),
      value_(read()) {}

bool HostNumber::is(const at::Tensor& tensor) const {
  return tensor.storage().unsafeGetStorageImpl() == storage_->unsafeGetStorageImpl() &&
         static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize() == begin_;
}

std::string HostNumber::read() const { return {static_cast<const char*>(storage_->data()) + begin_, bytes_}; }

GivenTensor::GivenTensor(const at::Tensor& tensor)
    : tensor_(tensor.getIntrusivePtr()),
      memory_(memory_of(tensor)),
      offset_(tensor.storage_offset()),
      sizes_(tensor.sizes().vec()),
      strides_(tensor.strides().vec()),
      is_frozen_(!tensor.requires_grad()) {}

bool GivenTensor::is_trained() const {
  const auto tensor = tensor_.lock();
  if (!tensor || !is_frozen_) return false;
  const at::Tensor now(tensor);
  return now.requires_grad() && now.is_leaf();  // else the step itself has computed it there
}

bool GivenTensor::has_changed() const {
  const auto tensor = tensor_.lock();
  if (!tensor) return false;
  const at::Tensor now(tensor);
  return memory_of(now) != memory_ || now.storage_offset() != offset_ || now.sizes() != at::IntArrayRef(sizes_) ||
         now.strides() != at::IntArrayRef(strides_);
}

CaptureMemory::CaptureMemory(c10::DeviceType device, std::function<bool()> is_captured,
                             std::function<bool(const c10::StorageImpl*)> is_kept)
    : device_(device),
      is_captured_(std::move(is_captured)),
      is_kept_(std::move(is_kept)),
      watched_(kCaptures, std::make_shared<Watched<CaptureMemory>>(this)) {
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

CaptureMemory::~CaptureMemory() { at::removeCallback(handle_); }

std::unique_ptr<at::ObserverContext> CaptureMemory::begin(const at::RecordFunction& operation) {
  CaptureMemory* own = watch_of<CaptureMemory>(kCaptures);
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
  CaptureMemory* own = watch_of<CaptureMemory>(kCaptures);
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

bool is_among(const c10::Storage& memory, const std::vector<WeakMemory>& made) {
  const at::Tensor bytes = bytes_of(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(memory.unsafeGetStorageImpl()));
  return std::any_of(made.begin(), made.end(), [&](const WeakMemory& weak) {
    const c10::intrusive_ptr<c10::StorageImpl> other = weak.lock();
    return other && other->device() == memory.device() && other->nbytes() == memory.nbytes() &&
           at::equal(bytes_of(other), bytes);
  });
}

std::vector<MovedOut> move_out(const std::vector<WeakMemory>& made) {
  std::vector<MovedOut> all;
  for (const WeakMemory& weak : made) {
    const c10::intrusive_ptr<c10::StorageImpl> memory = weak.lock();
    if (!memory || memory->nbytes() == 0) continue;
    // A storage that takes over the memory of the graph, in exchange for a copy.
    at::Tensor left = bytes_of(memory).clone();
    c10::DataPtr& copy = left.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    copy = memory->set_data_ptr(std::move(copy));
    all.push_back({weak, std::move(left)});
  }
  return all;
}

bool MovedOut::has_owner() const {
  const c10::intrusive_ptr<c10::StorageImpl> memory = owner.lock();
  return memory && static_cast<std::int64_t>(memory->nbytes()) == left.numel();
}

void MovedOut::follow() const {
  if (has_owner()) bytes_of(owner.lock()).copy_(left);
}

void fill_with_nan(const std::vector<WeakMemory>& made) {
  for (const WeakMemory& weak : made) {
    const c10::intrusive_ptr<c10::StorageImpl> memory = weak.lock();
    if (memory && memory->nbytes() > 0) bytes_of(memory).fill_(0xff);  // NaN in all types of floating point
  }
}

UseWatch::UseWatch(const std::vector<WeakMemory>& memory) : watched_(kUses, std::make_shared<Watched<UseWatch>>(this)) {
  for (const WeakMemory& one : memory) memory_.push_back(one._unsafe_get_target());
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&begin).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

UseWatch::~UseWatch() { at::removeCallback(handle_); }

std::unique_ptr<at::ObserverContext> UseWatch::begin(const at::RecordFunction& operation) {
  UseWatch* own = watch_of<UseWatch>(kUses);
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

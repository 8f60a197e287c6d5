#include "step_signature.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>
#include <variant>
#include <vector>

namespace stagecraft {
namespace {

bool is_same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) || (a.const_data_ptr() == b.const_data_ptr() && a.scalar_type() == b.scalar_type() &&
                          a.sizes() == b.sizes() && a.strides() == b.strides());
}

/// Elements from the first to the last in memory; 0 if several of the tensor's elements may be one.
std::int64_t extent_of(const at::Tensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;  // stride and size
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) dimensions.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(dimensions.begin(), dimensions.end());
  std::int64_t extent = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride < extent) return 0;
    extent += (size - 1) * stride;
  }
  return extent;
}

bool have_bytes_in_common(const at::Tensor& a, const at::Tensor& b) {
  const auto begin_of = [](const at::Tensor& one) { return static_cast<const char*>(one.const_data_ptr()); };
  const auto end_of = [&](const at::Tensor& one) {
    return begin_of(one) + extent_of(one) * static_cast<std::int64_t>(one.element_size());
  };
  return a.numel() > 0 && b.numel() > 0 && begin_of(a) < end_of(b) && begin_of(b) < end_of(a);
}

/// A graph reads its own copy of an input, with the same strides. Beyond this many times its size it is too large.
constexpr std::int64_t kMostGaps = 4;

}  // namespace

std::size_t StepSignature::index_of(const at::Tensor& tensor) const {
  std::size_t index = 0;
  while (index < tensors_.size() && !is_same_view(tensors_[index], tensor)) ++index;
  return index;
}

void StepSignature::add(const at::Tensor& tensor) {
  if (!tensor.defined()) return add(std::uint64_t{0});
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    return refuse("an input is sparse or nested, which a graph cannot read again");
  }
  if (tensor.device() != device_) {
    return refuse("an input is on " + tensor.device().str() + ", but the rank computes on " + device_.str() +
                  ": give inputs and targets there");
  }
  if (tensor.requires_grad()) return refuse("an input needs a gradient, which belongs to a graph of the caller's");
  if (tensor.numel() > 0) {
    const std::int64_t extent = extent_of(tensor);
    if (extent == 0) {
      return refuse("an input is expanded, so that several of its elements are one: call contiguous() on it");
    }
    if (extent > kMostGaps * tensor.numel()) {
      return refuse("an input of " + std::to_string(tensor.numel()) + " elements is spread over the memory of " +
                    std::to_string(extent) + ": call contiguous() on it");
    }
  }
  if (tensor.is_conj() || tensor.is_neg()) return refuse("an input is conjugated or negated lazily: resolve it first");
  const std::size_t index = index_of(tensor);
  add(index + 1);
  if (index < tensors_.size()) return;
  tensors_.push_back(tensor);
  add(std::uint64_t{overlaps(index)});
  add(static_cast<std::uint64_t>(tensor.scalar_type()));
  add(static_cast<std::uint64_t>(tensor.dim()));
  for (const std::int64_t size : tensor.sizes()) add(static_cast<std::uint64_t>(size));
  for (const std::int64_t stride : tensor.strides()) add(static_cast<std::uint64_t>(stride));
}

bool StepSignature::overlaps(std::size_t tensor) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (i != tensor && have_bytes_in_common(tensors_[i], tensors_[tensor])) return true;
  }
  return false;
}

void StepSignature::add(const Value& value) {
  add(std::uint64_t{value.held().index()});
  const auto visit = [this](const auto& held) {
    using Held = std::decay_t<decltype(held)>;
    if constexpr (std::is_same_v<Held, at::Tensor> || std::is_same_v<Held, ValueDict>) {
      add(held);
    } else if constexpr (std::is_same_v<Held, bool> || std::is_same_v<Held, std::int64_t>) {
      add(static_cast<std::uint64_t>(held));
    } else if constexpr (std::is_same_v<Held, double>) {
      add(std::bit_cast<std::uint64_t>(held));
    } else if constexpr (std::is_same_v<Held, std::string>) {
      add(std::uint64_t{std::hash<std::string>()(held)});
    } else if constexpr (std::is_same_v<Held, ValueList>) {
      add(std::uint64_t{held.size()});
      for (const Value& item : held) add(item);
    } else if constexpr (std::is_same_v<Held, OpaquePtr>) {
      refuse("an input is " + held->kind() + ", of which nobody knows when it changes");
    }
  };
  std::visit(visit, value.held());
}

void StepSignature::add(const ValueDict& dict) {
  add(std::uint64_t{dict.size()});
  for (const auto& [name, value] : dict) {
    add(std::uint64_t{std::hash<std::string>()(name)});
    add(value);
  }
}

void StepSignature::add(const StepInputs& inputs) {
  for (const ValueList& list : inputs.arguments) {
    add(std::uint64_t{list.size()});
    for (const Value& value : list) add(value);
  }
  for (const ValueDict& dict : inputs.keywords) add(dict);
  add(std::uint64_t{inputs.targets.size()});
  for (const Value& value : inputs.targets) add(value);
  for (const auto* rows : {&inputs.rows, &inputs.target_rows, &inputs.loss_rows}) {
    add(std::uint64_t{rows->size()});
    for (const std::int64_t size : *rows) add(static_cast<std::uint64_t>(size));
  }
  add(static_cast<std::uint64_t>(inputs.first_microbatch));
  add(std::uint64_t{inputs.keep_outputs});
}

void StepSignature::add_modes() {
  at::Context& context = at::globalContext();
  const auto add_all = [this](auto... modes) { (add(static_cast<std::uint64_t>(modes)), ...); };
  add_all(at::autocast::is_autocast_enabled(device_.type()), at::autocast::get_autocast_dtype(device_.type()),
          context.deterministicAlgorithms(), context.deterministicCuDNN(), context.benchmarkCuDNN(),
          context.userEnabledCuDNN(), context.userEnabledFlashSDP(), context.userEnabledMemEfficientSDP(),
          context.userEnabledMathSDP(), context.userEnabledCuDNNSDP(), context.allowFP16BF16ReductionMathSDP(),
          context.allowFP16ReductionCuBLAS(), context.allowBF16ReductionCuBLAS(),
          context.allowFP16AccumulationCuBLAS());
  for (const auto op : {at::Float32Op::CONV, at::Float32Op::RNN, at::Float32Op::MATMUL}) {
    add_all(context.float32Precision(at::Float32Backend::CUDA, op));
  }
  for (const at::SDPBackend backend : context.sDPPriorityOrder()) add_all(backend);
  add_all(context.blasPreferredBackend(), context.linalgPreferredBackend());
  const auto& saving = at::SavedTensorDefaultHooks::get_tls_state();
  add_all(c10::impl::TorchDispatchModeTLS::stack_len(), at::impl::PythonTorchFunctionTLS::stack_len(),
          saving.stack.size());
}

void StepSignature::add(const Stage& stage) {
  if (stage.options().mode) add(stage.options().mode());
  for (const auto* own : {&stage.parameters(), &stage.buffers()}) {
    for (const auto& [name, tensor] : *own) {
      const auto shares = [&own = tensor](const at::Tensor& input) { return input.is_alias_of(own); };
      if (tensor.defined() && tensor.has_storage() && std::any_of(tensors_.begin(), tensors_.end(), shares)) {
        refuse("an input shares its memory with '" + name + "' of a stage, which a step may change: clone it");
      }
    }
  }
  for (const auto& [name, parameter] : stage.parameters()) {
    add(std::uint64_t{parameter.defined() && parameter.requires_grad()});
    const auto* meta = parameter.defined() ? torch::autograd::impl::get_autograd_meta(parameter) : nullptr;
    if (meta == nullptr) continue;
    add(std::uint64_t{meta->hooks_.size()});
    for (const auto& hook : meta->hooks_) add(reinterpret_cast<std::uintptr_t>(hook.get()));
    add(reinterpret_cast<std::uintptr_t>(meta->post_acc_grad_hooks_.get()));
    if (!meta->cpp_hooks_list_) continue;
    for (const auto& hook : *meta->cpp_hooks_list_) add(std::uint64_t{hook != nullptr});
  }
}

Value StepSignature::with(const Value& value, const std::vector<at::Tensor>& replacements) const {
  return value.map_tensors(
      [&](const at::Tensor& tensor) { return tensor.defined() ? replacements.at(index_of(tensor)) : tensor; });
}

ValueDict StepSignature::with(const ValueDict& dict, const std::vector<at::Tensor>& replacements) const {
  ValueDict changed;
  for (const auto& [name, value] : dict) changed.emplace_back(name, with(value, replacements));
  return changed;
}

StepInputs StepSignature::with(const StepInputs& inputs, const std::vector<at::Tensor>& replacements) const {
  StepInputs changed = inputs;
  for (ValueList& list : changed.arguments) {
    for (Value& value : list) value = with(value, replacements);
  }
  for (ValueDict& dict : changed.keywords) dict = with(dict, replacements);
  for (Value& value : changed.targets) value = with(value, replacements);
  return changed;
}

}  // namespace stagecraft

#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>

#include "stagecraft/core/error.h"
#include "stagecraft/stage/random.h"
#include "stagecraft/stage/stage.h"

/// Stages from `torch::nn` modules.
namespace stagecraft {
namespace detail {

inline void convert(const at::Tensor& tensor, Value& value) { value = tensor; }
inline void convert(Value from, Value& value) { value = std::move(from); }
inline void convert(const std::vector<at::Tensor>& tensors, Value& value) {
  value = ValueList(tensors.begin(), tensors.end());
}
template <typename... Parts>
void convert(const std::tuple<Parts...>& parts, Value& value) {
  ValueList list;
  std::apply(
      [&](const auto&... part) {
        (
            [&] {
              list.emplace_back();
              convert(part, list.back());
            }(),
            ...);
      },
      parts);
  value = std::move(list);
}

/// Calls `forward`, the module's own or inherited, with as many tensors as it takes.
template <typename Module, typename Owner, typename Result, typename... Arguments>
Stage::Forward call_with_tensors(std::shared_ptr<Module> module, Result (Owner::*forward)(Arguments...)) {
  return [module = std::move(module), forward](const StageCall& call) {
    call.require_at_most(sizeof...(Arguments));
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      Value result;
      convert(((*module).*forward)(call.tensor(I)...), result);
      return result;
    }
    (std::index_sequence_for<Arguments...>());
  };
}

/// Calls the layers one after the other. Unless `first_layer` is -1, each draws random numbers by its position in the
/// whole model, counted from `first_layer`.
inline Stage::Forward call_layers(std::shared_ptr<torch::nn::SequentialImpl> layers, std::int64_t first_layer) {
  return [layers = std::move(layers), first_layer](const StageCall& call) -> Value {
    call.require_at_most(1);
    if (first_layer < 0 || layers->is_empty()) return layers->forward(call.tensor(0));
    torch::nn::AnyValue value(call.tensor(0));
    std::int64_t position = first_layer;
    for (auto layer = layers->begin(); layer != layers->end(); ++layer) {
      const RandomLayer random(position++);
      value = layer->any_forward(std::move(value));
    }
    return value.get<at::Tensor>();
  };
}

/// The same layers one by one, for a recompute of some of them.
inline std::vector<StageLayer> separate_layers(const std::shared_ptr<torch::nn::SequentialImpl>& layers,
                                               std::int64_t first_layer, const std::string& prefix) {
  const std::vector<std::string> names = layers->named_children().keys();
  std::vector<StageLayer> all;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string name = prefix.empty() ? names[i] : prefix + "." + names[i];
    const std::int64_t position = first_layer < 0 ? -1 : first_layer + static_cast<std::int64_t>(i);
    all.push_back({name,
                   [layer = *(layers->begin() + static_cast<std::ptrdiff_t>(i)), position,
                    name](const StageCall& call) mutable -> Value {
                     call.require_at_most(1);
                     std::optional<RandomLayer> random;
                     if (position >= 0) random.emplace(position);
                     torch::nn::AnyValue value = layer.any_forward(call.tensor(0));
                     if (const at::Tensor* tensor = value.try_get<at::Tensor>()) return *tensor;
                     throw InvalidArgument("layer '" + name +
                                           "' does not return a tensor, so it cannot be recomputed separately: use "
                                           "Recompute::stage()");
                   }});
  }
  return all;
}

inline NamedTensors named(const torch::OrderedDict<std::string, at::Tensor>& items, const std::string& prefix) {
  NamedTensors result;
  for (const auto& item : items)
    result.emplace_back(prefix.empty() ? item.key() : prefix + "." + item.key(), item.value());
  return result;
}

/// Switches to evaluation, and returns a function that gives every submodule its old mode back, so that a part that the
/// user keeps in evaluation stays there.
inline std::function<void()> enter_evaluation(const std::shared_ptr<torch::nn::Module>& module) {
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes;
  for (const auto& part : module->modules()) modes.emplace_back(part, part->is_training());
  module->eval();
  return [modes = std::move(modes)] {
    for (const auto& [part, training] : modes) {
      if (part->is_training() != training) part->train(training);
    }
  };
}

/// A hash of which submodules are in training.
inline std::uint64_t mode_of(const torch::nn::Module& module) {
  std::uint64_t mode = module.is_training() ? 3 : 2;
  for (const auto& child : module.children()) mode = mode * 0x9e3779b97f4a7c15ULL + mode_of(*child);
  return mode;
}

}  // namespace detail

/// A stage from a module and a callable that runs it. `prefix` is put before the names of the module's parameters, to
/// make them the names in the whole model.
template <typename Module>
Stage make_stage(int index, const std::shared_ptr<Module>& module, Stage::Forward forward, StageOptions options = {},
                 const std::string& prefix = {}) {
  if (!options.mode) options.mode = [module] { return detail::mode_of(*module); };
  return Stage(
      index, std::move(forward), detail::named(module->named_parameters(), prefix),
      detail::named(module->named_buffers(), prefix), [module] { return detail::enter_evaluation(module); },
      std::move(options));
}

/// A stage from a module whose `forward` takes tensors and returns a tensor, a tuple or vector of them, or a Value.
template <typename Module>
requires std::is_base_of_v<torch::nn::Module, Module> Stage make_stage(int index, const std::shared_ptr<Module>& module,
                                                                       StageOptions options = {},
                                                                       const std::string& prefix = {}) {
  if constexpr (std::is_same_v<Module, torch::nn::SequentialImpl>) {
    Stage::Forward forward = detail::call_layers(module, options.first_layer);
    if (!options.layers) {
      options.layers = [module, first = options.first_layer, prefix] {
        return detail::separate_layers(module, first, prefix);
      };
    }
    return make_stage(index, module, std::move(forward), std::move(options), prefix);
  } else {
    return make_stage(index, module, detail::call_with_tensors(module, &Module::forward), std::move(options), prefix);
  }
}

/// The same from a module holder, such as `torch::nn::Linear` or `torch::nn::Sequential`.
template <typename Module>
Stage make_stage(int index, const torch::nn::ModuleHolder<Module>& holder, StageOptions options = {},
                 const std::string& prefix = {}) {
  return make_stage(index, holder.ptr(), std::move(options), prefix);
}

}  // namespace stagecraft

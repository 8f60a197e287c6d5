#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "stagecraft/stagecraft.h"
#include "support/processes.h"

/// A model whose dropout, ties and skip connections do not depend on the cut: one device computes its layers in
/// sequence.
namespace stagecraft::crossings {

/// Features of a model that are easy to get wrong.
struct Traits {
  int layers = 6;
  at::ScalarType type = at::kDouble;
  bool dropout = false;
  bool skip = false;      ///< The first layer's second value goes to two later layers.
  bool tied = false;      ///< The first and the last layer have one weight.
  bool strided = false;   ///< Layers return views that are not contiguous.
  bool frozen = false;    ///< Every third layer is not trained.
  bool in_place = false;  ///< The first layer changes the batch in place; stages copy their inputs.
  bool extra = false;     ///< Auxiliary losses in the middle layers.
  bool ignored = false;   ///< Classes as targets, some of which do not count.

  [[nodiscard]] bool is_complex() const { return at::isComplexType(type); }
  [[nodiscard]] int last() const { return layers - 1; }
  /// The layers that take the skipped value.
  [[nodiscard]] bool takes_skip(int layer) const {
    return skip && layer > 0 && (layer == layers / 2 || layer == last());
  }
};

inline constexpr std::int64_t kWidth = 4;

/// Where everything runs.
inline at::Device device() { return ProcessEnvironment::device().value_or(at::kCPU); }

/// The same numbers wherever they are made; complex ones have both parts.
inline at::Tensor numbers(std::initializer_list<std::int64_t> sizes, double phase, at::ScalarType type) {
  const at::Tensor angle = (at::arange(c10::multiply_integers(sizes), at::kDouble) * 1.3 + phase).view(sizes);
  const at::Tensor all = at::isComplexType(type) ? at::complex(angle.sin(), (angle * 0.9).cos()) : angle.sin();
  return all.to(device(), type);
}

/// The layer whose weight a layer uses.
inline int owner(const Traits& traits, int layer) { return traits.tied && layer == traits.last() ? 0 : layer; }
/// The name that a layer's weight has in the whole model.
inline std::string weight_name(const Traits& traits, int layer) {
  return "layer" + std::to_string(owner(traits, layer)) + ".weight";
}

/// The auxiliary loss belongs to a layer in the middle, and has a parameter of its own: one element of one dimension.
inline bool has_extra(const Traits& traits, int layer) { return traits.extra && layer == traits.layers / 2; }
inline constexpr const char* kShift = "shift";

/// Weights of some layers; layers with one name share one tensor.
class Weights {
 public:
  /// The same numbers for a name, wherever it is made.
  Weights(const Traits& traits, int begin, int end) : traits_(traits) {
    for (int layer = begin; layer < end; ++layer) {
      if (has_extra(traits, layer)) {
        const at::ScalarType real = c10::toRealValueType(traits.type);
        named_.emplace_back(kShift, numbers({1}, 1, real).set_requires_grad(true));
      }
      const std::string name = weight_name(traits, layer);
      if (find(name) != nullptr) continue;
      double phase = 0;
      for (const char letter : name) phase = phase * 1.7 + letter;
      const bool trained = !(traits.frozen && owner(traits, layer) % 3 == 1);
      named_.emplace_back(name, (0.6 * numbers({kWidth, kWidth}, phase, traits.type)).set_requires_grad(trained));
    }
  }

  [[nodiscard]] const NamedTensors& named() const { return named_; }
  [[nodiscard]] const at::Tensor& of(int layer) const { return *find(weight_name(traits_, layer)); }
  [[nodiscard]] const at::Tensor& shift() const { return *find(kShift); }

 private:
  [[nodiscard]] const at::Tensor* find(const std::string& name) const {
    for (const auto& [own, tensor] : named_) {
      if (own == name) return &tensor;
    }
    return nullptr;
  }

  Traits traits_;
  NamedTensors named_;
};

/// A microbatch between two layers.
struct Between {
  at::Tensor x;
  at::Tensor skipped;  ///< Undefined before it is made.
};

inline Between run_layer(const Traits& traits, const Weights& weights, int layer, Between in, bool training) {
  const RandomLayer random(layer);
  at::Tensor x = in.x;
  if (traits.in_place && layer == 0) x.mul_(1.25);
  if (traits.takes_skip(layer)) x = x * 0.5 + in.skipped * x + in.skipped;  // two uses of the skipped value
  x = at::matmul(x, weights.of(layer));
  x = traits.is_complex() ? x * (1.0 / 3) : at::tanh(x);
  if (traits.is_complex() && layer % 2 == 0) x = x.conj();  // lazily
  if (traits.dropout && training)
    x = traits.is_complex() ? x * at::dropout(at::real(at::ones_like(x)), 0.3, true) : at::dropout(x, 0.3, true);
  if (traits.skip && layer == 0) in.skipped = traits.is_complex() ? x * 0.3 : at::sigmoid(x);
  if (traits.strided && layer % 2 == 1) x = x.t().contiguous().t();
  if (traits.is_complex() && layer == traits.last()) x = at::real(x * x.conj());
  return {x, in.skipped};
}

/// The gradient of the shift is a view of the loss's.
inline at::Tensor extra_loss(const at::Tensor& x, const Weights& weights) {
  return 0.1 * (at::is_complex(x) ? at::real(x * x.conj()) : x.pow(2)).mean() + weights.shift().squeeze();
}

inline at::Tensor loss_of(const Traits& traits, const at::Tensor& output, const at::Tensor& target) {
  return traits.ignored ? at::cross_entropy_loss(output, target) : at::mse_loss(output, target);
}

/// The weight of a microbatch.
inline double weight_of(const Traits& traits, const at::Tensor& target) {
  return traits.ignored ? (target != -100).sum().item<double>() : static_cast<double>(target.size(0));
}

/// The layers [begin, end) as a stage.
inline Stage make_layers(const Traits& traits, int index, int begin, int end) {
  const auto weights = std::make_shared<Weights>(traits, begin, end);
  const auto training = std::make_shared<bool>(true);
  const auto extra = std::make_shared<at::Tensor>();  // of the microbatch that was forwarded last
  Stage::Forward forward = [=](const StageCall& call) -> Value {
    Between between{call.tensor(0), call.arguments.size() > 1 ? call.tensor(1) : at::Tensor()};
    for (int layer = begin; layer < end; ++layer) {
      between = run_layer(traits, *weights, layer, between, *training);
      if (has_extra(traits, layer)) *extra = extra_loss(between.x, *weights);
    }
    if (traits.skip && begin == 0 && end < traits.layers) return ValueList{between.x, between.skipped};
    return between.x;
  };
  StageOptions options;
  options.copy_inputs = traits.in_place;
  options.layers = [=] {
    std::vector<StageLayer> layers;
    for (int layer = begin; layer < end; ++layer) {
      layers.push_back({"layer" + std::to_string(layer), [=](const StageCall& call) -> Value {
                          Between between{call.tensor(0), call.arguments.size() > 1 ? call.tensor(1) : at::Tensor()};
                          between = run_layer(traits, *weights, layer, between, *training);
                          const bool passes_on = layer + 1 < end ? between.skipped.defined()
                                                                 : traits.skip && begin == 0 && end < traits.layers;
                          if (passes_on) return ValueList{between.x, between.skipped};
                          return between.x;
                        }});
    }
    return layers;
  };
  for (int layer = begin; layer < end; ++layer) {
    if (has_extra(traits, layer)) options.auxiliary_loss = [=](const Value&) { return *extra; };
  }
  NamedTensors named = weights->named();
  return Stage(
      index, std::move(forward), std::move(named), {},
      [training] {
        *training = false;
        return std::function<void()>([training] { *training = true; });
      },
      std::move(options));
}

}  // namespace stagecraft::crossings

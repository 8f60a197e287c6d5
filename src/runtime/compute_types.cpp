#include "compute_types.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <array>
#include <cmath>
#include <utility>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

using Type = std::optional<at::ScalarType>;

std::array<std::pair<const char*, Type>, 4> named_types(const Precision& precision) {
  return {{{"compute", precision.compute},
           {"parameters", precision.parameters},
           {"autocast", precision.autocast},
           {"reduce", precision.reduce}}};
}

void check_scaling(const LossScaling& scaling) {
  const auto require = [](bool holds, const char* name, double value, const char* rule) {
    if (holds) return;
    throw InvalidArgument(std::string("precision.scaling.") + name + " is " + std::to_string(value) + ": it must be " +
                          rule);
  };
  require(scaling.initial > 0 && std::isfinite(scaling.initial), "initial", scaling.initial, "positive");
  require(scaling.growth >= 1 && std::isfinite(scaling.growth), "growth", scaling.growth, "at least 1");
  require(scaling.backoff > 0 && scaling.backoff < 1, "backoff", scaling.backoff, "between 0 and 1");
  require(scaling.growth_interval >= 1, "growth_interval", scaling.growth_interval, "at least 1");
}

}  // namespace

void check_precision(const Precision& precision) {
  for (const auto& [name, type] : named_types(precision)) {
    if (!type || at::isFloatingType(*type)) continue;
    throw InvalidArgument(std::string("precision.") + name + " is " + c10::toString(*type) +
                          ", which is not a floating-point type: use at::kBFloat16, at::kHalf or at::kFloat");
  }
  if (precision.compute && precision.autocast) {
    throw InvalidArgument(
        "precision has both compute, which converts the parameters, and autocast, which converts what operations take: "
        "give one of them");
  }
  if (precision.autocast && *precision.autocast != at::kBFloat16 && *precision.autocast != at::kHalf) {
    throw InvalidArgument(std::string("precision.autocast is ") + c10::toString(*precision.autocast) +
                          ": operations choose between float32 and a 16-bit type, so use at::kBFloat16 or at::kHalf");
  }
  if (!precision.keep.empty() && !precision.compute) {
    throw InvalidArgument("precision.keep names parameters that compute leaves as they are, but compute is not given");
  }
  if (precision.scaling && !precision.is_half()) {
    throw InvalidArgument(
        "precision.scaling is for float16, whose range is small; bfloat16 has the range of float32 and needs none: "
        "leave it out, or compute in at::kHalf");
  }
  if (precision.scaling) check_scaling(*precision.scaling);
}

std::string text_of(const Precision& precision) {
  std::string text;
  for (const auto& [name, type] : named_types(precision)) {
    if (type) text += std::string(name) + ' ' + c10::toString(*type) + ", ";
  }
  for (const std::string& pattern : precision.keep) text += "keep " + pattern + ", ";
  if (precision.is_half()) {
    const LossScaling scaling = precision.scaling.value_or(LossScaling());
    for (const double number : {scaling.initial, scaling.growth, scaling.backoff, double(scaling.growth_interval)}) {
      text += std::to_string(number) + ' ';
    }
  }
  return text.empty() ? "as the modules have it" : text;
}

Value for_modules(const Value& value, at::ScalarType compute) {
  return value.map_tensors([&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_floating_point() ? tensor.to(compute) : tensor;
  });
}

Value for_loss(const Value& output, at::ScalarType compute) {
  return output.map_tensors([&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.scalar_type() == compute ? tensor.to(at::kFloat) : tensor;
  });
}

AutocastScope::AutocastScope(const Precision& precision, at::DeviceType device) : device_(device) {
  if (!precision.autocast) return;
  before_ = {at::autocast::is_autocast_enabled(device), at::autocast::is_autocast_cache_enabled(),
             at::autocast::get_autocast_dtype(device)};
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::set_autocast_dtype(device, *precision.autocast);
  // The cache is one for all threads: whether a rank finds another's entry would decide the order of sums.
  at::autocast::set_autocast_cache_enabled(false);
}

AutocastScope::~AutocastScope() {
  if (!before_) return;
  at::autocast::set_autocast_enabled(device_, before_->is_enabled);
  at::autocast::set_autocast_dtype(device_, before_->type);
  at::autocast::set_autocast_cache_enabled(before_->has_cache);
}

}  // namespace stagecraft

#include "description.h"

#include <algorithm>

namespace stagecraft::wire {

TensorForm TensorForm::of(const at::Tensor& tensor) {
  TensorForm form;
  if (!tensor.defined()) return form;
  form.is_defined = true;
  form.wants_gradient = tensor.requires_grad();
  form.is_meta = tensor.is_meta();
  form.is_on_host = tensor.is_cpu();
  form.type = tensor.scalar_type();
  form.sizes = tensor.sizes().vec();
  if (!tensor.is_contiguous()) form.strides = tensor.strides().vec();
  return form;
}

bool TensorForm::fits(const at::Tensor& tensor) const {
  if (!tensor.defined() || !is_defined) return tensor.defined() == is_defined;
  return wants_gradient == tensor.requires_grad() && is_meta == tensor.is_meta() && is_on_host == tensor.is_cpu() &&
         type == tensor.scalar_type() && tensor.sizes() == sizes &&
         (strides.empty() ? tensor.is_contiguous() : tensor.strides() == strides);
}

std::int64_t TensorForm::bytes() const {
  auto total = static_cast<std::int64_t>(c10::elementSize(type));
  for (const std::int64_t size : sizes) total *= size;
  return is_defined && !is_meta ? total : 0;
}

std::optional<std::uint16_t> Descriptions::find(const std::shared_ptr<const std::string>& form,
                                                const std::vector<at::Tensor>& tensors) const {
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const Description& one = *kept_[i];
    if (one.form != form || one.tensors.size() != tensors.size()) continue;
    const bool fits = std::equal(tensors.begin(), tensors.end(), one.tensors.begin(),
                                 [](const at::Tensor& tensor, const TensorForm& known) { return known.fits(tensor); });
    if (fits) return static_cast<std::uint16_t>(i);
  }
  return std::nullopt;
}

std::uint16_t Descriptions::add(DescriptionPtr description) {
  const std::uint16_t number = next_;
  next_ = static_cast<std::uint16_t>((next_ + 1) % kKept);
  set(number, std::move(description));
  return number;
}

void Descriptions::set(std::uint16_t number, DescriptionPtr description) {
  if (kept_.size() <= number) kept_.resize(number + std::size_t{1});
  kept_[number] = std::move(description);
}

DescriptionPtr Descriptions::at(std::uint16_t number) const { return number < kept_.size() ? kept_[number] : nullptr; }

}  // namespace stagecraft::wire

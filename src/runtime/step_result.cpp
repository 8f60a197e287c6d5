#include <ATen/ATen.h>

#include <limits>

#include "stagecraft/core/error.h"
#include "stagecraft/runtime/pipeline.h"

namespace stagecraft {
namespace {

/// The values of scalars, which may be undefined (0); waits once for their device.
std::vector<double> on_host(const std::vector<at::Tensor>& scalars) {
  std::vector<at::Tensor> defined;
  for (const at::Tensor& scalar : scalars) {
    if (scalar.defined()) defined.push_back(scalar.detach().reshape({}).to(at::kDouble));
  }
  if (defined.empty()) return std::vector<double>(scalars.size());
  const at::Tensor all = at::stack(defined).cpu();
  std::vector<double> numbers;
  const double* next = all.const_data_ptr<double>();
  for (const at::Tensor& scalar : scalars) numbers.push_back(scalar.defined() ? *next++ : 0);
  return numbers;
}

}  // namespace

double StepResult::loss() const {
  if (losses.empty()) {
    throw InvalidArgument("this rank has no loss: ask for it where the last stage is, or set broadcast_loss");
  }
  double total = 0;
  bool counts = false;
  const std::vector<double> numbers = on_host(losses);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (weights[i] == 0) continue;
    counts = true;
    total += weights[i] * numbers[i];
  }
  return counts ? total : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace stagecraft

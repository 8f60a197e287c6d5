#include "optimizers.h"

#include <torch/optim/optimizer.h>

namespace stagecraft::python {
namespace {

struct NoOptions : torch::optim::OptimizerCloneableOptions<NoOptions> {
  [[nodiscard]] double get_lr() const override { return 0; }
  void set_lr(double /*rate*/) override {}
};

/// Stands for an optimizer of Python, of which C++ only needs the tensors.
class PythonOptimizer : public torch::optim::Optimizer {
 public:
  explicit PythonOptimizer(const std::vector<at::Tensor>& tensors)
      : Optimizer({torch::optim::OptimizerParamGroup(tensors)}, std::make_unique<NoOptions>()) {}
  at::Tensor step(LossClosure /*closure*/) override { return {}; }
};

}  // namespace

void attach_tensors(Pipeline& pipeline, const std::vector<at::Tensor>& tensors, bool by_element) {
  pipeline.attach(PythonOptimizer(tensors), by_element);
}

}  // namespace stagecraft::python

// A library of operators that a user might bring: Python and Stagecraft load it alike.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace {

namespace ag = torch::autograd;

/// Its backward is not that of a square, but three times as large: it must be this one that is used.
struct Square : ag::Function<Square> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x, double factor) {
    context->save_for_backward({x});
    context->saved_data["factor"] = factor;
    return x * x * factor;
  }
  static ag::variable_list backward(ag::AutogradContext* context, const ag::variable_list& gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    return {gradients[0] * x * (6 * context->saved_data["factor"].toDouble()), at::Tensor()};
  }
};

at::Tensor square(const at::Tensor& x, double factor) { return x * x * factor; }
at::Tensor square_with_gradient(const at::Tensor& x, double factor) { return Square::apply(x, factor); }

}  // namespace

TORCH_LIBRARY(stagecraft_test, library) { library.def("square(Tensor x, float factor) -> Tensor"); }
TORCH_LIBRARY_IMPL(stagecraft_test, CompositeExplicitAutograd, library) { library.impl("square", &square); }
TORCH_LIBRARY_IMPL(stagecraft_test, Autograd, library) { library.impl("square", &square_with_gradient); }

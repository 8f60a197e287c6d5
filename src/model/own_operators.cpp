#include "own_operators.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace stagecraft {
namespace {

namespace ag = torch::autograd;

constexpr const char* kName = "transformers::grouped_mm_fallback";

/// Calls `visit` with the number of each group that has rows, its first row and how many it has. `ends` has the end of
/// each group; rows after the last belong to none.
template <typename Visit>
void for_each_group(const at::Tensor& ends, std::int64_t rows, const Visit& visit) {
  const at::Tensor on_host = ends.to(at::kCPU, at::kLong).contiguous();
  std::int64_t begin = 0;
  for (std::int64_t group = 0; group < on_host.numel(); ++group) {
    const std::int64_t end = on_host.data_ptr<std::int64_t>()[group];
    TORCH_CHECK(begin <= end && end <= rows, kName, ": group ", group, " ends at row ", end, ", but must end between ",
                begin, ", where it begins, and the ", rows, " rows of the input");
    if (begin < end) visit(group, begin, end - begin);
    begin = end;
  }
}

void check_shapes(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends) {
  TORCH_CHECK(input.dim() == 2 && weight.dim() == 3 && ends.dim() == 1, kName,
              " takes an input [rows, in], a weight [groups, in, out] and the end of each group, got ", input.sizes(),
              ", ", weight.sizes(), " and ", ends.sizes());
  TORCH_CHECK(input.size(1) == weight.size(1) && ends.size(0) == weight.size(0), kName, ": an input ", input.sizes(),
              " and ", ends.size(0), " groups do not fit a weight ", weight.sizes());
}

/// Multiplies each group of rows with the matrix of its group.
at::Tensor grouped_product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends) {
  check_shapes(input, weight, ends);
  at::Tensor output = at::zeros({input.size(0), weight.size(2)}, input.options());
  for_each_group(ends, input.size(0), [&](std::int64_t group, std::int64_t begin, std::int64_t rows) {
    at::Tensor part = output.narrow(0, begin, rows);
    at::mm_out(part, input.narrow(0, begin, rows), weight.select(0, group));
  });
  return output;
}

struct GroupedProduct : ag::Function<GroupedProduct> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& ends) {
    context->save_for_backward({input, weight, ends});
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto handle = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow(kName, "")
                                   .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>();
    return handle.call(input, weight, ends);
  }

  /// A split backward asks for one of the two gradients at a time.
  static ag::variable_list backward(ag::AutogradContext* context, const ag::variable_list& gradients) {
    const ag::variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& gradient = gradients[0];
    at::Tensor of_input = context->needs_input_grad(0) ? at::zeros_like(input) : at::Tensor();
    at::Tensor of_weight = context->needs_input_grad(1) ? at::zeros_like(weight) : at::Tensor();
    for_each_group(saved[2], input.size(0), [&](std::int64_t group, std::int64_t begin, std::int64_t rows) {
      const at::Tensor own = gradient.narrow(0, begin, rows);
      if (of_input.defined()) {
        at::Tensor part = of_input.narrow(0, begin, rows);
        at::mm_out(part, own, weight.select(0, group).t());
      }
      if (of_weight.defined()) {
        at::Tensor part = of_weight.select(0, group);
        at::mm_out(part, input.narrow(0, begin, rows).t(), own);
      }
    });
    return {of_input, of_weight, at::Tensor()};
  }
};

at::Tensor differentiable_product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends) {
  return GroupedProduct::apply(input, weight, ends);
}

struct Registered {
  Registered() {
    if (c10::Dispatcher::singleton().findSchema({kName, ""})) return;
    library =
        std::make_unique<torch::Library>(torch::Library::FRAGMENT, "transformers", std::nullopt, __FILE__, __LINE__);
    library->def("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor");
    library->impl("grouped_mm_fallback",
                  torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &grouped_product));
    library->impl("grouped_mm_fallback", torch::dispatch(c10::DispatchKey::Autograd, &differentiable_product));
  }
  std::unique_ptr<torch::Library> library;
};

}  // namespace

void register_own_operators() { static const Registered registered; }

}  // namespace stagecraft

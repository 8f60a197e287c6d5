// A layer that computes its own weight gradient, later: autograd computes only the gradient of the input. Right after
// the backward of a microbatch, the runtime calls deferred_weights; it runs the returned function in the weight part.

#include <torch/torch.h>

#include <deque>
#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

struct Saved {
  torch::Tensor input, gradient;
};

/// y = x W^T; its backward returns dx and saves (x, dy).
struct DeferredLinear : torch::autograd::Function<DeferredLinear> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight, std::int64_t saved) {
    context->save_for_backward({x, weight});
    context->saved_data["saved"] = saved;
    return x.matmul(weight.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto kept = context->get_saved_variables();
    reinterpret_cast<Saved*>(context->saved_data["saved"].toInt())->input = kept[0];
    reinterpret_cast<Saved*>(context->saved_data["saved"].toInt())->gradient = gradients[0];
    return {gradients[0].matmul(kept[1]), torch::Tensor(), torch::Tensor()};
  }
};

}  // namespace

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 2}, [](sc::World& world) {
    const int index = world.rank().value;
    const auto weight = torch::randn({4, 4}).requires_grad_(true);
    Saved last;  // of the microbatch whose backward ran last
    sc::StageOptions options;
    options.deferred_weights = [&]() -> std::function<void()> {
      return [weight, saved = last] {
        const auto gradient = saved.gradient.t().matmul(saved.input);
        weight.mutable_grad() = weight.grad().defined() ? weight.grad() + gradient : gradient;
      };
    };
    const auto deferred = [&](const sc::StageCall& call) -> sc::Value {
      return DeferredLinear::apply(call.tensor(0), weight.detach().requires_grad_(true),
                                   reinterpret_cast<std::int64_t>(&last));
    };
    // The same layer with autograd, for comparison.
    const auto reference = weight.detach().clone().requires_grad_(true);
    const auto plain = [&](const sc::StageCall& call) -> sc::Value { return call.tensor(0).matmul(reference.t()); };

    const auto x = torch::ones({8, 4}), y = torch::linspace(0, 1, 32).view({8, 4});
    const sc::PipelineOptions pipelined = {
        .schedule = "ZB-H1",
        .microbatches = 4,
        .loss = [](const sc::Value& output, const sc::Value& target, const sc::ValueDict&) {
          return torch::mse_loss(output.tensor(), target.tensor());
        }};
    sc::Pipeline ours(world, {sc::Stage(index, deferred, {{"weight", weight}}, {}, {}, options)}, pipelined);
    ours.step({x}, {.target = y});
    sc::Pipeline theirs(world, {sc::Stage(index, plain, {{"weight", reference}})}, pipelined);
    theirs.step({x}, {.target = y});
    const auto difference = (weight.grad() - reference.grad()).abs().max().item<double>();
    if (world.is_first()) std::cout << "largest difference to autograd: " << difference << "\n";
    if (difference > 1e-5) throw std::runtime_error("the gradient is wrong");
  });
}

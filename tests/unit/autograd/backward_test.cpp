#include "stagecraft/autograd/backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using testing::HasSubstr;

at::TensorOptions doubles() { return at::TensorOptions().dtype(at::kDouble); }
Tensor randn(at::IntArrayRef sizes) { return at::randn(sizes, doubles()); }
Tensor weight(at::IntArrayRef sizes) { return randn(sizes).requires_grad_(true); }

/// A stage in miniature: leaves in, outputs out, weights inside.
struct Case {
  Tensors inputs;
  Tensors weights;
  std::function<Tensors(const Tensors&)> forward;
};

struct Gradients {
  Tensors inputs;
  Tensors weights;
};

bool same(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return at::equal(a, b);
}

void expect_same(const Tensors& got, const Tensors& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(got[i], expected[i])) << what << " " << i;
}

Tensors take_gradients(const Tensors& tensors) {
  Tensors gradients;
  for (const Tensor& tensor : tensors) {
    gradients.push_back(tensor.grad().defined() ? tensor.grad().clone() : Tensor());
    tensor.mutable_grad().reset();
  }
  return gradients;
}

/// Plain autograd over several microbatches, one after the other.
Gradients reference(const Case& c, int iterations, const std::vector<Tensors>& arriving) {
  Gradients result;
  for (int i = 0; i < iterations; ++i) {
    Tensors leaves;
    for (const Tensor& input : c.inputs) leaves.push_back(input.detach().set_requires_grad(input.requires_grad()));
    Tensors roots;
    Tensors gradients;
    const Tensors outputs = c.forward(leaves);
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      if (!outputs[o].requires_grad() || !arriving[i][o].defined()) continue;
      roots.push_back(outputs[o]);
      gradients.push_back(arriving[i][o]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
    for (const Tensor& leaf : leaves) result.inputs.push_back(leaf.grad());
  }
  result.weights = take_gradients(c.weights);
  return result;
}

Gradients staged(const Case& c, int iterations, const std::vector<Tensors>& arriving, bool split,
                 BackwardPlanner& planner) {
  Gradients result;
  std::vector<Backward> pending;
  for (int i = 0; i < iterations; ++i) {
    Tensors leaves;
    for (const Tensor& input : c.inputs) leaves.push_back(input.detach().set_requires_grad(input.requires_grad()));
    pending.emplace_back(c.forward(leaves), leaves);  // the outputs are released here
  }
  for (int i = 0; i < iterations; ++i) {
    const Tensors gradients = split ? pending[i].input_part(arriving[i], planner) : pending[i].full(arriving[i]);
    result.inputs.insert(result.inputs.end(), gradients.begin(), gradients.end());
  }
  if (split) {
    for (const Tensor& w : c.weights) EXPECT_FALSE(w.grad().defined()) << "the input part touched a weight";
    for (Backward& backward : pending) {
      EXPECT_TRUE(backward.awaits_weight_part());
      backward.weight_part();
      EXPECT_FALSE(backward.awaits_weight_part());
    }
  }
  result.weights = take_gradients(c.weights);
  return result;
}

/// Full and split backward agree with plain autograd bit for bit, over several iterations, analysing the graph once.
void check(const Case& c, int outputs, const std::vector<bool>& gradient_comes = {}) {
  constexpr int kIterations = 3;
  const Tensors like = c.forward(c.inputs);
  ASSERT_EQ(like.size(), static_cast<std::size_t>(outputs));
  std::vector<Tensors> arriving(kIterations);
  for (Tensors& gradients : arriving) {
    for (std::size_t o = 0; o < like.size(); ++o) {
      const bool comes = gradient_comes.empty() || gradient_comes[o];
      gradients.push_back(comes ? at::randn_like(like[o].detach()) : Tensor());
    }
  }
  const Gradients expected = reference(c, kIterations, arriving);
  BackwardPlanner planner;
  for (const bool split : {false, true}) {
    SCOPED_TRACE(split ? "split" : "full");
    const Gradients got = staged(c, kIterations, arriving, split, planner);
    expect_same(got.inputs, expected.inputs, "input gradient");
    expect_same(got.weights, expected.weights, "weight gradient");
  }
  EXPECT_EQ(planner.times_learnt(), 1);
}

Tensor input(at::IntArrayRef sizes) { return randn(sizes).requires_grad_(true); }

TEST(Backward, Mlp) {
  const Tensor w1 = weight({8, 4}), b1 = weight({8}), w2 = weight({4, 8}), b2 = weight({4});
  check({{input({3, 4})},
         {w1, b1, w2, b2},
         [=](const Tensors& in) -> Tensors { return {at::linear(at::relu(at::linear(in[0], w1, b1)), w2, b2)}; }},
        1);
}

TEST(Backward, SharedWeightUsedTwice) {
  const Tensor w = weight({4, 4}), b = weight({4});
  check({{input({3, 4})},
         {w, b},
         [=](const Tensors& in) -> Tensors { return {at::linear(at::tanh(at::linear(in[0], w, b)), w, b)}; }},
        1);
}

TEST(Backward, SharedBranchOfAWeight) {
  // One transpose feeds both products: the branches meet before the leaf.
  const Tensor w = weight({4, 4});
  check({{input({3, 4})},
         {w},
         [=](const Tensors& in) -> Tensors {
           const Tensor scaled = w * w;
           return {at::matmul(at::tanh(at::matmul(in[0], scaled)), scaled)};
         }},
        1);
}

TEST(Backward, SeveralOutputsOfOneNode) {
  const Tensor w = weight({6, 4});
  check({{input({3, 4})},
         {w},
         [=](const Tensors& in) -> Tensors {
           const Tensors parts = at::linear(in[0], w).split(2, 1);
           return {parts[0], parts[2] * 2};
         }},
        2);
}

TEST(Backward, MultiOutputNodeInTheMiddle) {
  const Tensor w = weight({4, 4}), v = weight({2, 2});
  check({{input({3, 4})},
         {w, v},
         [=](const Tensors& in) -> Tensors {
           const Tensors parts = at::matmul(in[0], w).split(2, 1);
           return {at::matmul(parts[0], v) + parts[1]};
         }},
        1);
}

TEST(Backward, ViewsAsOutputs) {
  const Tensor w = weight({4, 4});
  check({{input({2, 3, 4})},
         {w},
         [=](const Tensors& in) -> Tensors {
           const Tensor y = at::matmul(in[0], w);
           return {y.view({6, 4}), y.select(0, 1), y.transpose(0, 1)};
         }},
        3);
}

TEST(Backward, InputPassedStraightThrough) {
  const Tensor w = weight({4, 4});
  check({{input({3, 4})}, {w}, [=](const Tensors& in) -> Tensors { return {at::matmul(in[0], w), in[0]}; }}, 2);
  check({{input({3, 4})}, {}, [=](const Tensors& in) -> Tensors { return {in[0]}; }}, 1);
}

TEST(Backward, InputsThatNeedNoGradient) {
  const Tensor table = weight({10, 4}), w = weight({4, 4});
  const Tensor tokens = at::randint(10, {3, 5}, at::TensorOptions().dtype(at::kLong));
  check({{tokens},
         {table, w},
         [=](const Tensors& in) -> Tensors { return {at::matmul(at::embedding(table, in[0]), w)}; }},
        1);
  check({{randn({3, 4}), input({3, 4})},
         {w},
         [=](const Tensors& in) -> Tensors { return {at::matmul(in[0], w) + in[1]}; }},
        1);
}

TEST(Backward, ParametersThatReachTheOutputNotByWayOfAnInput) {
  const Tensor position = weight({3, 4}), w = weight({4, 4}), free = weight({2});
  check({{input({3, 4})},
         {position, w, free},
         [=](const Tensors& in) -> Tensors {
           return {at::matmul(in[0] + position, w), at::sin(free) * 2};
         }},
        2);
}

TEST(Backward, BroadcastWeights) {
  const Tensor scale = weight({1, 4}), shift = weight({});
  check({{input({3, 4})}, {scale, shift}, [=](const Tensors& in) -> Tensors { return {in[0] * scale + shift}; }}, 1);
}

TEST(Backward, UnusedInputsAndFrozenWeights) {
  const Tensor w = weight({4, 4});
  const Tensor frozen = randn({4, 4});
  check({{input({3, 4}), input({2})},
         {w},
         [=](const Tensors& in) -> Tensors { return {at::matmul(at::relu(at::matmul(in[0], frozen)), w)}; }},
        1);
  check({{input({3, 4})}, {}, [=](const Tensors& in) -> Tensors { return {at::matmul(in[0], frozen)}; }}, 1);
}

TEST(Backward, OutputsThatGetNoGradient) {
  const Tensor w = weight({4, 4}), v = weight({4, 4});
  const Case c{{input({3, 4})}, {w, v}, [=](const Tensors& in) -> Tensors {
                 return {at::matmul(in[0], w), at::matmul(in[0], v)};
               }};
  check(c, 2, {true, false});
  check(c, 2, {false, false});
}

struct Cube : torch::autograd::Function<Cube> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& w, double power) {
    context->save_for_backward({x, w});
    context->saved_data["power"] = power;
    return x.pow(power) * w;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const double power = context->saved_data["power"].toDouble();
    return {gradients[0] * saved[1] * power * saved[0].pow(power - 1), gradients[0] * saved[0].pow(power), Tensor()};
  }
};

TEST(Backward, CustomAutogradFunction) {
  const Tensor w = weight({3, 4}), v = weight({4, 4});
  check({{input({3, 4})},
         {w, v},
         [=](const Tensors& in) -> Tensors { return {Cube::apply(at::matmul(in[0], v), w, 3.0)}; }},
        1);
}

TEST(Backward, LayerNormAttentionBlock) {
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(8, 2));
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({8}));
  attention->to(at::kDouble);
  norm->to(at::kDouble);
  Tensors weights = attention->parameters();
  for (const Tensor& w : norm->parameters()) weights.push_back(w);
  check({{input({5, 2, 8})},
         weights,
         [=](const Tensors& in) mutable -> Tensors {
           const Tensor x = norm(in[0]);
           return {in[0] + std::get<0>(attention(x, x, x))};
         }},
        1);
}

struct CountAccumulations : torch::autograd::PostAccumulateGradHook {
  explicit CountAccumulations(int& counter) : count(counter) {}
  void operator()(const Tensor&) override { ++count; }
  int& count;
};

TEST(Backward, PostAccumulateHooksFireOncePerMicrobatch) {
  const Tensor w = weight({4, 4}), v = weight({4});
  for (const bool split : {false, true}) {
    int shared = 0, single = 0;
    torch::autograd::impl::set_post_acc_grad_hooks(w, std::make_unique<CountAccumulations>(shared));
    torch::autograd::impl::set_post_acc_grad_hooks(v, std::make_unique<CountAccumulations>(single));
    BackwardPlanner planner;
    for (int microbatch = 1; microbatch <= 3; ++microbatch) {
      const Tensor x = input({3, 4});
      const Tensor y = at::matmul(at::matmul(x, w), w) * v;  // one weight twice
      Backward backward(Tensors{y}, Tensors{x});
      if (split) {
        backward.input_part({at::ones_like(y)}, planner);
        EXPECT_EQ(shared, microbatch - 1) << "the input part fired a weight's hook";
        backward.weight_part();
      } else {
        backward.full({at::ones_like(y)});
      }
      EXPECT_EQ(shared, microbatch);
      EXPECT_EQ(single, microbatch);
    }
    torch::autograd::impl::set_post_acc_grad_hooks(w, nullptr);
    torch::autograd::impl::set_post_acc_grad_hooks(v, nullptr);
  }
}

TEST(Backward, HooksOnTensorsFireOnce) {
  const Tensor w = weight({4, 4});
  for (const bool split : {false, true}) {
    int seen = 0;
    const auto handle = w.register_hook([&](const Tensor& gradient) {
      ++seen;
      return gradient * 2;
    });
    const Tensor x = input({3, 4});
    int between = 0;
    const Tensor y = at::matmul(x, w);
    y.register_hook([&](const Tensor& gradient) {
      ++between;
      return gradient * 3;
    });
    const Tensor z = at::matmul(y, w);
    Backward backward(Tensors{z}, Tensors{x});
    BackwardPlanner planner;
    const Tensors gradients{at::ones_like(z)};
    if (split) {
      backward.input_part(gradients, planner);
      backward.weight_part();
    } else {
      backward.full(gradients);
    }
    EXPECT_EQ(seen, 1);
    EXPECT_EQ(between, 1);
    const Tensor dz = at::ones_like(z);
    const Tensor dy = at::matmul(dz, w.detach().t()) * 3;
    const Tensor expected = (at::matmul(y.detach().t(), dz) + at::matmul(x.detach().t(), dy)) * 2;
    EXPECT_TRUE(at::allclose(w.grad(), expected));
    w.remove_hook(handle);
    w.mutable_grad().reset();
  }
}

TEST(Backward, LearnsAgainWhenTheGraphChangesItsShape) {
  const Tensor w = weight({4, 4}), v = weight({4, 4});
  BackwardPlanner planner;
  const auto run = [&](bool deep, const Tensor& first) {
    const Tensor x = input({3, 4});
    const Tensor y = deep ? at::matmul(at::relu(at::matmul(x, first)), v) : at::matmul(x, first);
    y.sum().backward({}, /*retain_graph=*/true);
    const Tensors expected = take_gradients({x, w, v});
    Backward backward(Tensors{y}, Tensors{x});
    const Tensors got = backward.input_part({at::ones_like(y)}, planner);
    backward.weight_part();
    EXPECT_TRUE(same(got[0], expected[0]));
    expect_same(take_gradients({w, v}), {expected[1], expected[2]}, "weight");
  };
  run(false, w);
  run(false, v);  // another weight, the same shape
  EXPECT_EQ(planner.times_learnt(), 1);
  run(true, w);
  run(true, v);  // now one weight is used twice
  EXPECT_EQ(planner.times_learnt(), 3);
}

TEST(Backward, LeafThatBecomesAnInputIsNoWeightAnyMore) {
  const Tensor w = weight({4, 4});
  BackwardPlanner planner;
  const Tensor a = input({4, 4}), b = input({4, 4});
  for (const bool second_is_input : {false, true}) {
    const Tensor y = at::matmul(a, b);
    Backward backward(Tensors{y}, second_is_input ? Tensors{a, b} : Tensors{a, w});
    backward.input_part({at::ones_like(y)}, planner);
    EXPECT_FALSE(b.grad().defined());
    backward.weight_part();
    EXPECT_EQ(b.grad().defined(), !second_is_input);
    b.mutable_grad().reset();
  }
}

/// Makes as many outputs as it is told to.
struct Copies : torch::autograd::Function<Copies> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext*, const Tensor& x, const Tensor& w,
                                                std::int64_t count) {
    torch::autograd::variable_list copies;
    for (std::int64_t i = 0; i < count; ++i) copies.push_back(x * 1.0 + w * 1.0);
    return copies;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    Tensor sum = at::zeros({3, 4}, doubles());
    for (const Tensor& gradient : gradients) sum = gradient.defined() ? sum + gradient : sum;
    return {sum, sum, Tensor()};
  }
};

TEST(Backward, GraphsThatDifferInWhatArrivesAtAForkAreNotTakenForOneAnother) {
  BackwardPlanner planner;
  for (const std::int64_t count : {2, 3, 1, 4}) {
    const Tensor x = input({3, 4}), w = weight({3, 4});
    const auto copies = Copies::apply(x, w, count);
    Backward backward(Tensors{copies.back()}, Tensors{x});  // graphs of one shape
    const Tensors back = backward.input_part({at::ones({3, 4}, doubles())}, planner);
    backward.weight_part();
    EXPECT_TRUE(back[0].equal(at::ones({3, 4}, doubles())));
    ASSERT_TRUE(w.grad().defined()) << count << " outputs";
    EXPECT_TRUE(w.grad().equal(at::ones({3, 4}, doubles()))) << count << " outputs";
  }
}

TEST(Backward, HooksOnSmallWeightsFireOnceInTheWeightPart) {
  const Tensor v = weight({4});
  BackwardPlanner planner;
  for (const bool hooked : {false, true, false}) {  // the planner has learnt the graph without the hook
    int seen = 0;
    unsigned handle = 0;
    if (hooked) {
      handle = v.register_hook([&](const Tensor& gradient) {
        ++seen;
        return gradient * 2;
      });
    }
    const Tensor x = input({3, 4});
    Backward backward(Tensors{x * v}, Tensors{x});
    backward.input_part({at::ones({3, 4}, doubles())}, planner);
    EXPECT_EQ(seen, 0);
    backward.weight_part();
    EXPECT_EQ(seen, hooked ? 1 : 0);
    EXPECT_TRUE(at::allclose(v.grad(), x.detach().sum(0) * (hooked ? 2 : 1)));
    v.mutable_grad().reset();
    if (hooked) v.remove_hook(handle);
  }
}

TEST(Backward, SaysWhatIsOutOfOrder) {
  const Tensor w = weight({4, 4});
  const Tensor x = input({3, 4});
  BackwardPlanner planner;
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  const Tensor y = at::matmul(x, w);
  Backward backward(Tensors{y}, Tensors{x});
  EXPECT_THAT(message([&] { backward.weight_part(); }), HasSubstr("run the input part of the microbatch first"));
  EXPECT_THAT(message([&] { backward.full({}); }), HasSubstr("got 0 gradients for 1 outputs"));
  backward.input_part({at::ones_like(y)}, planner);
  EXPECT_THAT(message([&] { backward.input_part({at::ones_like(y)}, planner); }), HasSubstr("has run already"));
  backward.weight_part();
  EXPECT_THAT(message([&] { backward.weight_part(); }), HasSubstr("has run already"));
  Backward none;
  EXPECT_THAT(message([&] { none.weight_part(); }), HasSubstr("first"));
}

}  // namespace
}  // namespace stagecraft

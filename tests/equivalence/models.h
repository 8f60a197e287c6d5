#pragma once

#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "stagecraft/stagecraft.h"

/// Small models in stages, each with something that is easy to get wrong.
namespace stagecraft::equivalence {

inline constexpr std::int64_t kWidth = 6;

/// One stage as a module with a uniform call: values in, values out.
struct Piece : torch::nn::Module {
  virtual ValueList run(const ValueList& in) = 0;
};
using PiecePtr = std::shared_ptr<Piece>;

struct Model {
  std::string name;
  std::function<PiecePtr(int stage, int stages)> make;
  std::function<std::vector<Edge>(int stages)> edges = [](int) { return std::vector<Edge>(); };
  /// Makes the input of one microbatch.
  std::function<at::Tensor(std::int64_t rows)> input = [](std::int64_t rows) { return at::randn({rows, kWidth}); };
};

/// Where everything runs: STAGECRAFT_TEST_DEVICE, or the CPU.
inline at::Device device() {
  const char* name = std::getenv("STAGECRAFT_TEST_DEVICE");
  return at::Device(name != nullptr ? name : "cpu");
}

namespace detail {

struct Linear : Piece {
  Linear() : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  ValueList run(const ValueList& in) override { return {at::tanh(linear(in[0].tensor()))}; }
  torch::nn::Linear linear;
};

struct Transformer : Piece {
  Transformer()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        attention(register_module("attention",
                                  torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(kWidth, 2)))),
        up(register_module("up", torch::nn::Linear(kWidth, 2 * kWidth))),
        down(register_module("down", torch::nn::Linear(2 * kWidth, kWidth))) {}
  ValueList run(const ValueList& in) override {
    const at::Tensor x = in[0].tensor().transpose(0, 1);  // sequence first
    const at::Tensor y = norm(x);
    const at::Tensor z = x + std::get<0>(attention(y, y, y));
    return {(z + down(at::gelu(up(z)))).transpose(0, 1)};  // a view leaves the stage
  }
  torch::nn::LayerNorm norm;
  torch::nn::MultiheadAttention attention;
  torch::nn::Linear up, down;
};

/// The first stage returns a second value that skips all stages in between and goes to the last.
struct Skip : Piece {
  Skip(int stage, int stages)
      : gives(stage == 0 && stages > 1), linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  ValueList run(const ValueList& in) override {
    at::Tensor x = linear(in[0].tensor());
    if (in.size() > 1) x = x * in[1].tensor();
    if (gives) return {at::tanh(x), at::sigmoid(x)};
    return {at::tanh(x)};
  }
  bool gives;
  torch::nn::Linear linear;
};

struct SeveralOutputs : Piece {
  SeveralOutputs(int stage, int stages)
      : is_last(stage + 1 == stages),
        a(register_module("a", torch::nn::Linear(kWidth, kWidth))),
        b(register_module("b", torch::nn::Linear(kWidth, kWidth))) {}
  ValueList run(const ValueList& in) override {
    const at::Tensor x = in[0].tensor();
    const at::Tensor y = in.size() > 1 ? in[1].tensor() : x;
    const at::Tensor p = at::tanh(a(x)), q = at::tanh(b(y) + x);
    if (is_last) return {p + q};
    return {p, q, 3, Value(), x};  // a number, nothing, and the input passed straight through
  }
  bool is_last;
  torch::nn::Linear a, b;
};

struct SharedWeights : Linear {
  ValueList run(const ValueList& in) override {
    return {at::tanh(linear(at::tanh(linear(in[0].tensor()))) * linear->bias)};
  }
};

struct Frozen : Linear {
  Frozen(int stage, int stages) : other(register_module("other", torch::nn::Linear(kWidth, kWidth))) {
    for (auto& parameter : other->parameters()) parameter.set_requires_grad(false);
    if (stage % 2 == 0 && stages > 1) {
      for (auto& parameter : linear->parameters()) parameter.set_requires_grad(false);
    }
  }
  ValueList run(const ValueList& in) override { return {at::tanh(linear(at::tanh(other(in[0].tensor()))))}; }
  torch::nn::Linear other;
};

struct Dropout : Linear {
  ValueList run(const ValueList& in) override {
    return {at::dropout(at::tanh(linear(in[0].tensor())), 0.3, is_training())};
  }
};

struct BatchNorm : Linear {
  BatchNorm() : norm(register_module("norm", torch::nn::BatchNorm1d(kWidth))) {}
  ValueList run(const ValueList& in) override { return {norm(at::tanh(linear(in[0].tensor())))}; }
  torch::nn::BatchNorm1d norm;
};

template <typename Module, typename... Arguments>
PiecePtr made(Arguments... arguments) {
  auto module = std::make_shared<Module>(arguments...);

  return module;
}

}  // namespace detail

inline std::vector<Model> models() {
  using namespace detail;
  return {
      {"Mlp", [](int, int) { return made<Linear>(); }},
      {.name = "Transformer",
       .make = [](int, int) { return made<Transformer>(); },
       .input =
           [](std::int64_t rows) {
             return at::randn({rows, 3, kWidth}, at::kDouble);
           }},
      {.name = "Skip",
       .make = [](int stage, int stages) { return made<Skip>(stage, stages); },
       .edges =
           [](int stages) {
             if (stages < 2) return std::vector<Edge>();
             std::vector<Edge> edges;
             for (int s = 1; s < stages; ++s)
               edges.push_back({.from = StageId(s - 1), .output = 0, .to = StageId(s), .argument = 0});
             edges.push_back({.from = StageId(0), .output = 1, .to = StageId(stages - 1), .argument = 1});
             if (stages > 3) edges.push_back({.from = StageId(0), .output = 1, .to = StageId(2), .argument = 1});
             return edges;
           }},
      {"SeveralOutputs", [](int stage, int stages) { return made<SeveralOutputs>(stage, stages); }},
      {"SharedWeights", [](int, int) { return made<SharedWeights>(); }},
      {"Frozen", [](int stage, int stages) { return made<Frozen>(stage, stages); }},
      {"Dropout", [](int, int) { return made<Dropout>(); }},
      {"BatchNorm", [](int, int) { return made<BatchNorm>(); }},
  };
}

}  // namespace stagecraft::equivalence

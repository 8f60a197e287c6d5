#pragma once

#include <torch/torch.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// The GPT of the benchmarks on a GPU, in four stages, as bench/gpt_block.py has it for PyTorch.
namespace bench {

inline constexpr int kStages = 4;
inline constexpr std::int64_t kVocabulary = 8192;

struct Setting {
  std::int64_t layers, width;
  int microbatches;
  std::int64_t rows, length;
  at::ScalarType type;
  int ranks;

  /// LAYERS WIDTH MICROBATCHES ROWS LENGTH float|bfloat16 [RANKS]; none if there are too few.
  static std::optional<Setting> of(int argc, char** argv) {
    if (argc < 7) return std::nullopt;
    return Setting{.layers = std::atoll(argv[1]),
                   .width = std::atoll(argv[2]),
                   .microbatches = std::atoi(argv[3]),
                   .rows = std::atoll(argv[4]),
                   .length = std::atoll(argv[5]),
                   .type = std::string(argv[6]) == "bfloat16" ? at::kBFloat16 : at::kFloat,
                   .ranks = argc > 7 ? std::atoi(argv[7]) : 1};
  }
};

// torch::nn::Linear adds the bias of a 3-d input in a kernel of its own: at::linear does not.
struct Dense : torch::nn::Module {
  Dense(std::int64_t in, std::int64_t out, const at::TensorOptions& options)
      : weight(register_parameter("weight", at::randn({out, in}, options) * 0.02)),
        bias(register_parameter("bias", at::zeros({out}, options))) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
  at::Tensor weight, bias;
};

struct Block : torch::nn::Module {
  Block(std::int64_t width, const at::TensorOptions& options)
      : heads(width / 64),
        before(register_module("before", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        after(register_module("after", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        join(register_module("join", std::make_shared<Dense>(width, 3 * width, options))),
        leave(register_module("leave", std::make_shared<Dense>(width, width, options))),
        widen(register_module("widen", std::make_shared<Dense>(width, 4 * width, options))),
        narrow(register_module("narrow", std::make_shared<Dense>(4 * width, width, options))) {}
  at::Tensor forward(const at::Tensor& x) {
    std::vector<at::Tensor> parts = join->forward(before(x)).chunk(3, -1);
    for (at::Tensor& part : parts) part = part.unflatten(-1, {heads, -1}).transpose(1, 2);
    const at::Tensor seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    const at::Tensor y = x + leave->forward(seen.transpose(1, 2).flatten(2));
    return y + narrow->forward(at::gelu(widen->forward(after(y))));
  }
  std::int64_t heads;
  torch::nn::LayerNorm before, after;
  std::shared_ptr<Dense> join, leave, widen, narrow;
};

struct Part : torch::nn::Module {
  /// Made on the device, because a CPU takes long to draw the numbers.
  Part(const Setting& setting, int stage, const at::Device& device) {
    const at::TensorOptions options = at::TensorOptions(device).dtype(setting.type);
    if (stage == 0) tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, setting.width));
    for (std::int64_t layer = 0; layer < setting.layers / kStages; ++layer) {
      blocks.push_back(
          register_module("block" + std::to_string(layer), std::make_shared<Block>(setting.width, options)));
    }
    if (stage + 1 == kStages)
      head = register_module("head", std::make_shared<Dense>(setting.width, kVocabulary, options));
    to(device, setting.type);
  }
  at::Tensor forward(const at::Tensor& in) {
    at::Tensor x = tokens ? tokens->forward(in) : in;
    for (const auto& block : blocks) x = block->forward(x);
    return head ? head->forward(x) : x;
  }
  torch::nn::Embedding tokens{nullptr};
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<Dense> head;
};

inline at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return at::cross_entropy_loss(output.flatten(0, 1).to(at::kFloat), target.flatten());
}

}  // namespace bench

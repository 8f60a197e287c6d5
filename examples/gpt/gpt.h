#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

/// A small GPT in pieces for the stages of a pipeline; each piece is a module.
struct GptConfig {
  std::int64_t vocabulary = 128;
  std::int64_t context = 64;
  std::int64_t width = 192;
  std::int64_t heads = 6;
  int layers = 8;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GptConfig& config)
      : heads(config.heads),
        norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})))),
        qkv(register_module("qkv", torch::nn::Linear(config.width, 3 * config.width))),
        out(register_module("out", torch::nn::Linear(config.width, config.width))),
        up(register_module("up", torch::nn::Linear(config.width, 4 * config.width))),
        down(register_module("down", torch::nn::Linear(4 * config.width, config.width))) {}

  torch::Tensor forward(torch::Tensor x) {
    const auto rows = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = qkv(norm1(x)).view({rows, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + out(mixed.transpose(1, 2).reshape({rows, length, width}));
    return x + down(torch::gelu(up(norm2(x))));
  }

  std::int64_t heads;
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out, up, down;
};
TORCH_MODULE(Block);

/// Some consecutive layers; the first piece has the embeddings, the last one the head.
struct GptPieceImpl : torch::nn::Module {
  GptPieceImpl(const GptConfig& config, int piece, int pieces) {
    if (piece == 0) {
      tokens = register_module("tokens", torch::nn::Embedding(config.vocabulary, config.width));
      positions = register_module("positions", torch::nn::Embedding(config.context, config.width));
    }
    for (int layer = config.layers * piece / pieces; layer < config.layers * (piece + 1) / pieces; ++layer) {
      blocks.push_back(register_module("block" + std::to_string(layer), Block(config)));
    }
    if (piece + 1 == pieces) {
      norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})));
      head = register_module("head", torch::nn::Linear(config.width, config.vocabulary));
    }
  }

  torch::Tensor forward(torch::Tensor x) {
    if (!tokens.is_empty()) x = tokens(x) + positions(torch::arange(x.size(1), x.options()));
    for (auto& block : blocks) x = block(x);
    return head.is_empty() ? x : head(norm(x));
  }

  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(GptPiece);

inline torch::Tensor next_token_loss(const torch::Tensor& logits, const torch::Tensor& next) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), next.flatten());
}

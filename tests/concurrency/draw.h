#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <random>
#include <vector>

/// Inputs of one call of an operator, fixed by two seeds.
namespace stagecraft::concurrency {

/// Sizes come from one seed and values from another: ranks that share the first compute the same shapes on different
/// numbers, as the stages of one model do.
class Draw {
 public:
  Draw(at::ScalarType type, std::uint64_t sizes, std::uint64_t values)
      : type_(type), sizes_(sizes), values_(at::make_generator<at::CPUGeneratorImpl>(values)), seed_(values) {}

  /// Between `low` and `high`, both included.
  std::int64_t size(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(sizes_() % static_cast<std::uint64_t>(high - low + 1));
  }

  /// An input that gets a gradient.
  at::Tensor normal(at::IntArrayRef shape) { return leaf(at::randn(shape, values_, at::kFloat)); }
  /// The same, between `low` and `high`.
  at::Tensor uniform(at::IntArrayRef shape, double low, double high) {
    return leaf(at::rand(shape, values_, at::kFloat) * (high - low) + low);
  }
  /// In the memory layout of channels_last.
  at::Tensor channels_last(at::IntArrayRef shape) {
    return leaf(at::randn(shape, values_, at::kFloat).contiguous(at::MemoryFormat::ChannelsLast));
  }
  /// Numbers below `end`, no gradient.
  at::Tensor integers(std::int64_t end, at::IntArrayRef shape) {
    return at::randint(0, end, shape, values_, at::kLong);
  }

  std::uint64_t seed() const { return seed_; }
  at::ScalarType type() const { return type_; }
  /// All inputs so far that get a gradient.
  const std::vector<at::Tensor>& inputs() const { return inputs_; }

 private:
  at::Tensor leaf(const at::Tensor& value) {
    inputs_.push_back(value.to(type_).detach().requires_grad_());
    return inputs_.back();
  }

  at::ScalarType type_;
  std::mt19937_64 sizes_;
  at::Generator values_;
  std::uint64_t seed_;
  std::vector<at::Tensor> inputs_;
};

}  // namespace stagecraft::concurrency

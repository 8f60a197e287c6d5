#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>
#include <string>

#include "stagecraft/stagecraft.h"
#include "support/message_of.h"
#include "support/patience.h"

/// What the tests of the pipeline share.
namespace stagecraft::pipeline_testing {

using at::Tensor;
using testing::HasSubstr;

inline Tensor mean_square(const Value& output, const Value& target, const ValueDict&) {
  return (as_arguments(output)[0].tensor() - target.tensor()).pow(2).mean();
}

inline torch::nn::Sequential layer(std::int64_t width = 4) {
  return torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::Tanh());
}

/// A stage per rank, in the order of the ranks.
inline Stage stage_for(const World& world, StageOptions options = {}) {
  return make_stage(world.rank().value, layer(), std::move(options));
}

/// The same on all ranks, whatever others draw meanwhile.
inline Tensor numbers(const std::vector<std::int64_t>& sizes, double phase) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) * 0.7 + phase).sin().view(sizes);
}

inline void expect_close(const Tensor& got, const Tensor& expected) {
  ASSERT_TRUE(got.defined() && expected.defined());
  EXPECT_LT((got - expected).abs().max().item<double>(), 1e-13);
}

inline LaunchOptions quick(int ranks) { return {.ranks = ranks, .timeout = kPatience}; }

/// The text that each rank reported.
class Sayings {
 public:
  void add(RankId rank, const std::string& text) {
    const std::lock_guard lock(mutex_);
    said_[rank.value] = text;
  }
  const std::string& of(int rank) { return said_[rank]; }

 private:
  std::mutex mutex_;
  std::map<int, std::string> said_;
};

}  // namespace stagecraft::pipeline_testing

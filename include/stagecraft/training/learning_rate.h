#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace torch::optim {
class Optimizer;
}

/// Learning rates that change from update to update.
namespace stagecraft {

struct LearningRateOptions {
  /// The rate after the warm-up.
  double base = 0;
  /// Updates before `base` is reached: update u of them has the rate base * (u + 1) / (warm_up + 1).
  std::int64_t warm_up = 0;
  /// Where the decay ends, counted from the first update, the warm-up included. Not for a constant rate.
  std::int64_t updates = 0;
  /// The rate from update `updates` on. Not for a constant rate.
  double last = 0;
};

/// The learning rate of every update, which are counted from 0. With t = (update - warm_up) / (updates - warm_up):
///
///     constant   base
///     linear     last + (base - last) * (1 - t)
///     cosine     last + (base - last) * (1 + cos(pi t)) / 2
///
/// Checkpoints keep it (SaveOptions::learning_rate): a run that resumes with another one by mistake is told so.
class LearningRate {
 public:
  /// All throw InvalidArgument: `base` is positive, `last` from 0 to `base`, 0 <= `warm_up` < `updates`.
  static LearningRate constant(const LearningRateOptions& options);
  static LearningRate linear(const LearningRateOptions& options);
  static LearningRate cosine(const LearningRateOptions& options);

  /// Depends on nothing but the update. Throws InvalidArgument for a negative one.
  [[nodiscard]] double at(std::int64_t update) const;

  /// Sets the rates of the optimizer's groups, before its step. The first call takes the rate that every group has
  /// then, relative to `base`, for its factor, which it keeps: groups made with 3e-4 and 3e-5 and a base of 3e-4 have
  /// the factors 1 and 0.1. At least one group must have the factor 1. Throws InvalidArgument when none has, as when
  /// another LearningRate has set the rates, when something else has changed a rate since the last call, when there are
  /// other groups than then, or when the optimizer has no rate.
  void apply(torch::optim::Optimizer& optimizer, std::int64_t update);

  /// "cosine: base 0.0003, warm-up 100, updates 1000, last 3e-05", with all digits.
  [[nodiscard]] std::string text() const;

 private:
  enum class Kind : std::uint8_t { kConstant, kLinear, kCosine };
  LearningRate(Kind kind, const LearningRateOptions& options);

  Kind kind_;
  LearningRateOptions options_;
  std::vector<double> factors_;  // by group; empty before the first `apply`
  std::vector<double> applied_;  // what the last `apply` has set
};

}  // namespace stagecraft

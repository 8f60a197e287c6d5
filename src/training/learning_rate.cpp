#include "stagecraft/training/learning_rate.h"

#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <cstdio>
#include <numbers>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

/// The shortest text that is read back as the same number.
std::string number_text(double value) {
  char text[32];
  for (const int digits : {15, 16, 17}) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
}

[[noreturn]] void refuse_rate(const std::string& text) { throw InvalidArgument("the learning rate's " + text); }

/// The rates of the groups relative to `base`. Without one that is `base`, these are not the rates that the groups were
/// made with.
std::vector<double> factors_of(const std::vector<double>& rates, double base) {
  std::vector<double> factors;
  std::string texts;
  bool has_base = rates.empty();
  for (const double rate : rates) {
    factors.push_back(rate / base);
    texts += (texts.empty() ? "" : ", ") + number_text(rate);
    has_base = has_base || std::abs(factors.back() - 1) < 1e-12;
  }
  if (has_base) return factors;
  throw InvalidArgument(
      "the learning rate's base is " + number_text(base) + ", but the groups of the optimizer have the rates " + texts +
      ": make one group with the base, and if another LearningRate has set them, go on with that one");
}

}  // namespace

LearningRate::LearningRate(Kind kind, const LearningRateOptions& options) : kind_(kind), options_(options) {
  const auto is_rate = [](double value) { return std::isfinite(value) && value >= 0; };
  if (!is_rate(options.base) || options.base == 0) {
    refuse_rate("base is " + number_text(options.base) + ": give a positive number");
  }
  if (options.warm_up < 0) refuse_rate("warm_up is " + std::to_string(options.warm_up) + ": give 0 or more updates");
  if (kind == Kind::kConstant) {
    if (options.updates == 0 && options.last == 0) return;
    refuse_rate("updates and last are for one that decays: leave them out, or take linear or cosine");
  }
  if (options.updates <= options.warm_up) {
    refuse_rate("updates are " + std::to_string(options.updates) + ", of which " + std::to_string(options.warm_up) +
                " are warm-up: give more");
  }
  if (!is_rate(options.last) || options.last > options.base) {
    refuse_rate("last is " + number_text(options.last) + ": give a number from 0 to base, which is " +
                number_text(options.base));
  }
}

LearningRate LearningRate::constant(const LearningRateOptions& options) { return {Kind::kConstant, options}; }
LearningRate LearningRate::linear(const LearningRateOptions& options) { return {Kind::kLinear, options}; }
LearningRate LearningRate::cosine(const LearningRateOptions& options) { return {Kind::kCosine, options}; }

double LearningRate::at(std::int64_t update) const {
  if (update < 0) throw InvalidArgument("updates are counted from 0, got " + std::to_string(update));
  const auto [base, warm_up, updates, last] = options_;
  if (update < warm_up) return base * (static_cast<double>(update + 1) / static_cast<double>(warm_up + 1));
  if (kind_ == Kind::kConstant) return base;
  if (update >= updates) return last;
  const double t = static_cast<double>(update - warm_up) / static_cast<double>(updates - warm_up);
  const double share = kind_ == Kind::kLinear ? 1 - t : (1 + std::cos(std::numbers::pi * t)) / 2;
  return last + (base - last) * share;
}

void LearningRate::apply(torch::optim::Optimizer& optimizer, std::int64_t update) {
  const double rate = at(update);
  std::vector<double> present;
  try {
    for (const auto& group : optimizer.param_groups()) present.push_back(group.options().get_lr());
  } catch (const c10::Error& error) {
    throw InvalidArgument(std::string("the optimizer has no learning rate to set: ") + error.what_without_backtrace());
  }
  if (applied_.empty()) {
    factors_ = factors_of(present, options_.base);
  } else if (present.size() != applied_.size()) {
    throw InvalidArgument("the optimizer had " + std::to_string(applied_.size()) +
                          " groups of parameters when its learning rate was set last, and has " +
                          std::to_string(present.size()) + ": make all groups before the first update");
  }
  for (std::size_t i = 0; i < applied_.size(); ++i) {
    if (present[i] == applied_[i]) continue;
    throw InvalidArgument("the learning rate of group " + std::to_string(i) + " was set to " +
                          number_text(applied_[i]) + ", and is " + number_text(present[i]) +
                          " now: let one LearningRate set those of an optimizer, and nothing else");
  }
  applied_.clear();
  for (std::size_t i = 0; i < factors_.size(); ++i) {
    applied_.push_back(factors_[i] * rate);
    optimizer.param_groups()[i].options().set_lr(applied_.back());
  }
}

std::string LearningRate::text() const {
  const char* const kinds[] = {"constant", "linear", "cosine"};
  std::string all = std::string(kinds[static_cast<std::size_t>(kind_)]) + ": base " + number_text(options_.base) +
                    ", warm-up " + std::to_string(options_.warm_up);
  if (kind_ == Kind::kConstant) return all;
  return all + ", updates " + std::to_string(options_.updates) + ", last " + number_text(options_.last);
}

}  // namespace stagecraft

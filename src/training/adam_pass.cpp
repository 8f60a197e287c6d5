// Compiled without fused multiply-add, which a compiler uses in the middle of a vector and not at its ends.

#include "adam_pass.h"

#include <cmath>

namespace stagecraft {
namespace {

/// What is the same for all elements, rounded to the type of the parameter.
template <typename T>
struct Factors {
  explicit Factors(const AdamNumbers& numbers)
      : keep(static_cast<T>(numbers.decays_gradients ? 1 : 1 - numbers.rate * numbers.weight_decay)),
        decay(static_cast<T>(numbers.weight_decay)),
        beta1(static_cast<T>(numbers.beta1)),
        rest1(static_cast<T>(1 - numbers.beta1)),
        beta2(static_cast<T>(numbers.beta2)),
        rest2(static_cast<T>(1 - numbers.beta2)),
        inverse_root(static_cast<T>(1 / std::sqrt(1 - std::pow(numbers.beta2, numbers.step)))),
        epsilon(static_cast<T>(numbers.epsilon)),
        size(static_cast<T>(-numbers.rate / (1 - std::pow(numbers.beta1, numbers.step)))) {}

  T keep, decay, beta1, rest1, beta2, rest2, inverse_root, epsilon, size;
};

template <bool kDecaysGradients, typename T>
void update(T* __restrict parameter, const T* __restrict gradient, T* __restrict average, T* __restrict square,
            std::int64_t count, const Factors<T> f) {
  for (std::int64_t i = 0; i < count; ++i) {
    T g = gradient[i];
    if constexpr (kDecaysGradients) g += f.decay * parameter[i];
    average[i] = average[i] * f.beta1 + f.rest1 * g;
    square[i] = square[i] * f.beta2 + f.rest2 * g * g;
    parameter[i] = parameter[i] * f.keep + f.size * average[i] / (std::sqrt(square[i]) * f.inverse_root + f.epsilon);
  }
}

}  // namespace

template <typename T>
void adam_pass(T* parameter, const T* gradient, T* average, T* square, std::int64_t count, const AdamNumbers& numbers) {
  const bool decays_gradients = numbers.decays_gradients && numbers.weight_decay != 0;
  (decays_gradients ? update<true, T> : update<false, T>)(parameter, gradient, average, square, count,
                                                          Factors<T>(numbers));
}

template void adam_pass(float*, const float*, float*, float*, std::int64_t, const AdamNumbers&);
template void adam_pass(double*, const double*, double*, double*, std::int64_t, const AdamNumbers&);

}  // namespace stagecraft

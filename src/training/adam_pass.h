#pragma once

#include <cstdint>

namespace stagecraft {

/// The numbers of one step.
struct AdamNumbers {
  double rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double weight_decay = 0;
  double epsilon = 0;
  std::int64_t step = 1;
  bool decays_gradients = false;  ///< Adam's weight decay, not AdamW's.
};

/// One step of Adam or AdamW for `count` elements of a parameter and its state, in one pass over the memory, where
/// LibTorch's step makes about ten. T is float or double. An element's result does not depend on its place, so a shard
/// gets the bits of the whole.
template <typename T>
void adam_pass(T* parameter, const T* gradient, T* average, T* square, std::int64_t count, const AdamNumbers& numbers);

}  // namespace stagecraft

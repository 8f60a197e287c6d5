// Convolutions of every kind: the operators that oneDNN computes.

#include "concurrency/operators.h"

namespace stagecraft::concurrency {
namespace {

using Tensor = at::Tensor;

struct Shape {
  std::int64_t dimensions = 2;
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  /// 0: one group per channel (depthwise).
  std::int64_t groups = 1;
  bool bias = true;
  bool transposed = false;
  bool channels_last = false;
  /// Channels are multiples of this: wide layers use other kernels.
  std::int64_t width = 1;
};

Tensor convolve(Draw& draw, const Shape& shape) {
  const std::int64_t groups = shape.groups > 0 ? shape.groups : 4 * draw.size(1, 8);
  const std::int64_t most = shape.width > 1 ? 3 : 8;
  const std::int64_t each = shape.groups > 0 ? shape.width * draw.size(1, most) : 1;
  const std::int64_t in = groups * each;
  const std::int64_t out = shape.groups > 0 ? groups * shape.width * draw.size(1, most) : in;
  std::vector<std::int64_t> input = {draw.size(1, 3), in};
  std::vector<std::int64_t> weight = {shape.transposed ? in : out, (shape.transposed ? out : in) / groups};
  const auto n = static_cast<std::size_t>(shape.dimensions);
  for (std::size_t i = 0; i < n; ++i) {
    input.push_back(draw.size(6, shape.dimensions == 1 ? 48 : 10));
    weight.push_back(shape.kernel);
  }
  const Tensor x = shape.channels_last ? draw.channels_last(input) : draw.normal(input);
  const Tensor w = draw.normal(weight);
  std::optional<Tensor> b;
  if (shape.bias) b = draw.normal({out});
  const std::vector<std::int64_t> stride(n, shape.stride), padding(n, shape.kernel / 2), dilation(n, shape.dilation),
      none(n, 0);
  return at::convolution(x, w, b, stride, padding, dilation, shape.transposed, none, groups);
}

}  // namespace

std::vector<Operator> convolutions() {
  const std::vector<at::ScalarType> all = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
  const std::vector<at::ScalarType> full = {at::kFloat, at::kDouble};
  const auto of = [](const Shape& shape) { return [shape](Draw& draw) { return convolve(draw, shape); }; };
  return {
      {"conv1d", all, of({.dimensions = 1})},
      {"conv1d_no_bias", full, of({.dimensions = 1, .bias = false})},
      {"conv1d_wide_kernel", full, of({.dimensions = 1, .kernel = 7})},
      {"conv1d_dilated", full, of({.dimensions = 1, .dilation = 2})},
      {"conv1d_grouped", full, of({.dimensions = 1, .groups = 4})},
      {"conv1d_depthwise", all, of({.dimensions = 1, .kernel = 4, .groups = 0})},
      {"conv1d_depthwise_no_bias", full, of({.dimensions = 1, .kernel = 4, .groups = 0, .bias = false})},
      {"conv1d_transposed", full, of({.dimensions = 1, .stride = 2, .transposed = true})},
      {"conv2d", all, of({})},
      {"conv2d_1x1", all, of({.kernel = 1})},
      {"conv2d_5x5", full, of({.kernel = 5})},
      {"conv2d_wide", all, of({.width = 32})},
      {"conv2d_wide_no_bias", full, of({.bias = false, .width = 32})},
      {"conv2d_wide_channels_last", full, of({.channels_last = true, .width = 32})},
      {"conv2d_wide_1x1", full, of({.kernel = 1, .width = 32})},
      {"conv2d_wide_5x5", full, of({.kernel = 5, .width = 16})},
      {"conv2d_wide_transposed", full, of({.stride = 2, .transposed = true, .width = 16})},
      {"conv1d_wide", full, of({.dimensions = 1, .width = 32})},
      {"conv2d_strided", full, of({.stride = 2})},
      {"conv2d_dilated", full, of({.dilation = 2})},
      {"conv2d_grouped", full, of({.groups = 2})},
      {"conv2d_depthwise", all, of({.groups = 0})},
      {"conv2d_depthwise_5x5", full, of({.kernel = 5, .stride = 2, .groups = 0})},
      {"conv2d_channels_last", all, of({.channels_last = true})},
      {"conv2d_1x1_channels_last", full, of({.kernel = 1, .channels_last = true})},
      {"conv2d_depthwise_channels_last", all, of({.groups = 0, .channels_last = true})},
      {"conv2d_transposed", all, of({.stride = 2, .transposed = true})},
      {"conv2d_transposed_grouped", full, of({.groups = 2, .transposed = true})},
      {"conv2d_transposed_depthwise", full, of({.groups = 0, .transposed = true})},
      {"conv3d", full, of({.dimensions = 3})},
      {"conv3d_depthwise", full, of({.dimensions = 3, .groups = 0})},
      {"conv3d_transposed", full, of({.dimensions = 3, .transposed = true})},
      {"conv2d_inference", full,
       [](Draw& draw) {
         const at::NoGradGuard off;
         return convolve(draw, {});
       }},
      {"conv2d_relu_chain", full,
       [](Draw& draw) {
         const std::int64_t width = 8 * draw.size(1, 4), side = draw.size(6, 12);
         const Tensor x = draw.normal({2, 3, side, side});
         const Tensor first = draw.normal({width, 3, 3, 3}), second = draw.normal({width, width, 3, 3});
         return at::conv2d(at::conv2d(x, first, draw.normal({width})).relu(), second, draw.normal({width}));
       }},
  };
}

}  // namespace stagecraft::concurrency

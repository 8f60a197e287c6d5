// Recurrent layers, pooling, resampling, dropout.

#include "concurrency/operators.h"
#include "stagecraft/stage/random.h"

namespace stagecraft::concurrency {
namespace {

using Tensor = at::Tensor;

/// Weights of a layer with `gates` gates, two layers deep.
std::vector<Tensor> recurrent(Draw& draw, std::int64_t gates, std::int64_t in, std::int64_t hidden) {
  std::vector<Tensor> weights;
  for (const std::int64_t width : {in, hidden}) {
    weights.push_back(draw.normal({gates * hidden, width}));
    weights.push_back(draw.normal({gates * hidden, hidden}));
    weights.push_back(draw.normal({gates * hidden}));
    weights.push_back(draw.normal({gates * hidden}));
  }
  return weights;
}

Tensor lstm(Draw& d) {
  const std::int64_t in = d.size(2, 12), hidden = d.size(2, 12), batch = d.size(1, 4);
  const Tensor x = d.normal({d.size(2, 7), batch, in}), h = d.normal({2, batch, hidden}),
               c = d.normal({2, batch, hidden});
  return std::get<0>(at::lstm(x, {h, c}, recurrent(d, 4, in, hidden), true, 2, 0.0, false, false, false));
}

Tensor image(Draw& d) { return d.normal({d.size(1, 2), d.size(1, 6), d.size(6, 13), d.size(6, 13)}); }

}  // namespace

std::vector<Operator> layers() {
  const std::vector<at::ScalarType> all = {at::kFloat, at::kDouble, at::kBFloat16};
  const std::vector<at::ScalarType> full = {at::kFloat, at::kDouble};
  return {
      {"lstm", all, lstm},
      {"lstm_inference", all,
       [](Draw& d) {
         const at::NoGradGuard off;
         return lstm(d);
       }},
      {"gru", all,
       [](Draw& d) {
         const std::int64_t in = d.size(2, 12), hidden = d.size(2, 12), batch = d.size(1, 4);
         const Tensor x = d.normal({d.size(2, 7), batch, in}), h = d.normal({2, batch, hidden});
         return std::get<0>(at::gru(x, h, recurrent(d, 3, in, hidden), true, 2, 0.0, false, false, false));
       }},
      {"rnn", all,
       [](Draw& d) {
         const std::int64_t in = d.size(2, 12), hidden = d.size(2, 12), batch = d.size(1, 4);
         const Tensor x = d.normal({d.size(2, 7), batch, in}), h = d.normal({2, batch, hidden});
         return std::get<0>(at::rnn_tanh(x, h, recurrent(d, 1, in, hidden), true, 2, 0.0, false, false, false));
       }},
      {"max_pool1d", all,
       [](Draw& d) {
         return at::max_pool1d(d.normal({2, 3, d.size(6, 40)}), 3);
       }},
      {"max_pool2d", all, [](Draw& d) { return at::max_pool2d(image(d), 2); }},
      {"max_pool3d", full,
       [](Draw& d) {
         return at::max_pool3d(d.normal({1, 2, d.size(4, 6), 6, 6}), 2);
       }},
      {"average_pool2d", all, [](Draw& d) { return at::avg_pool2d(image(d), 3, 2); }},
      {"average_pool3d", full,
       [](Draw& d) {
         return at::avg_pool3d(d.normal({1, 2, d.size(4, 6), 6, 6}), 2);
       }},
      {"adaptive_average_pool2d", all,
       [](Draw& d) {
         return at::adaptive_avg_pool2d(image(d), {3, 2});
       }},
      {"adaptive_max_pool2d", all,
       [](Draw& d) {
         return std::get<0>(at::adaptive_max_pool2d(image(d), {3, 2}));
       }},
      {"nearest", all,
       [](Draw& d) {
         return at::upsample_nearest2d(image(d), {9, 17});
       }},
      {"bilinear", all,
       [](Draw& d) {
         return at::upsample_bilinear2d(image(d), {9, 17}, false);
       }},
      {"bicubic", full,
       [](Draw& d) {
         return at::upsample_bicubic2d(image(d), {9, 17}, true);
       }},
      {"grid_sampler", full,
       [](Draw& d) {
         const Tensor x = image(d);
         return at::grid_sampler(x, d.uniform({x.size(0), 5, 4, 2}, -1, 1), 0, 0, false);
       }},
      {"reflection_pad", all,
       [](Draw& d) {
         return at::reflection_pad2d(image(d), {1, 2, 3, 1});
       }},
      {"unfold", all,
       [](Draw& d) {
         return at::im2col(image(d), {3, 3}, {1, 1}, {1, 1}, {1, 1});
       }},
      {"pixel_shuffle", full,
       [](Draw& d) {
         return at::pixel_shuffle(d.normal({1, 4, d.size(2, 6), 3}), 2);
       }},
      {"dropout", all,
       [](Draw& d) {
         const RandomScope random(d.seed(), StageId(0), MicrobatchId(0));
         return at::dropout(d.normal({3, d.size(2, 200)}), 0.3, true);
       }},
      {"random_numbers", full,
       [](Draw& d) {
         const RandomScope random(d.seed(), StageId(1), MicrobatchId(2));
         const Tensor x = d.normal({d.size(2, 200)});
         return x * at::randn_like(x) + at::bernoulli(x.detach().sigmoid()) + at::rand_like(x);
       }},
  };
}

}  // namespace stagecraft::concurrency

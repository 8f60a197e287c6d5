// Sums, norms, normalisations and losses.

#include "concurrency/operators.h"

namespace stagecraft::concurrency {
namespace {

using Tensor = at::Tensor;

Tensor rows(Draw& draw) { return draw.normal({draw.size(1, 20), draw.size(2, 120)}); }

}  // namespace

std::vector<Operator> reductions() {
  const std::vector<at::ScalarType> all = {at::kFloat, at::kDouble, at::kBFloat16};
  const std::vector<at::ScalarType> full = {at::kFloat, at::kDouble};
  return {
      {"sum", all, [](Draw& d) { return rows(d).sum(d.size(0, 1)); }},
      {"mean", all, [](Draw& d) { return rows(d).mean(d.size(0, 1)); }},
      {"variance", all, [](Draw& d) { return rows(d).var(1); }},
      {"product", full,
       [](Draw& d) {
         return d.uniform({5, d.size(2, 30)}, 0.8, 1.2).prod(1);
       }},
      {"maximum", all, [](Draw& d) { return std::get<0>(rows(d).max(1)); }},
      {"amin", all, [](Draw& d) { return rows(d).amin(0); }},
      {"norm", all, [](Draw& d) { return rows(d).norm(2, 1); }},
      {"logsumexp", all, [](Draw& d) { return at::logsumexp(rows(d), 1); }},
      {"cumsum", all, [](Draw& d) { return rows(d).cumsum(d.size(0, 1)); }},
      {"cumprod", full,
       [](Draw& d) {
         return d.uniform({3, d.size(2, 40)}, 0.8, 1.2).cumprod(1);
       }},
      {"logcumsumexp", full, [](Draw& d) { return at::logcumsumexp(rows(d), 1); }},
      {"softmax", all, [](Draw& d) { return at::softmax(rows(d), 1); }},
      {"softmax_first_dimension", all, [](Draw& d) { return at::softmax(rows(d), 0); }},
      {"log_softmax", all, [](Draw& d) { return at::log_softmax(rows(d), 1); }},
      {"layer_norm", all,
       [](Draw& d) {
         const Tensor x = rows(d);
         return at::layer_norm(x, {x.size(1)}, d.normal({x.size(1)}), d.normal({x.size(1)}));
       }},
      {"rms_norm", all,
       [](Draw& d) {
         const Tensor x = rows(d);
         return at::rms_norm(x, {x.size(1)}, d.normal({x.size(1)}));
       }},
      {"group_norm", all,
       [](Draw& d) {
         const std::int64_t channels = 4 * d.size(1, 5);
         const Tensor x = d.normal({2, channels, d.size(2, 9), d.size(2, 9)});
         return at::group_norm(x, 4, d.normal({channels}), d.normal({channels}));
       }},
      {"batch_norm", all,
       [](Draw& d) {
         const std::int64_t channels = d.size(1, 12);
         const Tensor x = d.normal({3, channels, d.size(2, 9), d.size(2, 9)});
         const Tensor mean = at::zeros({channels}, x.options()), spread = at::ones({channels}, x.options());
         const Tensor y =
             at::batch_norm(x, d.normal({channels}), d.normal({channels}), mean, spread, true, 0.1, 1e-5, true);
         return y + mean.view({1, -1, 1, 1}) * spread.view({1, -1, 1, 1});
       }},
      {"batch_norm_channels_last", full,
       [](Draw& d) {
         const std::int64_t channels = d.size(1, 12);
         const Tensor x = d.channels_last({3, channels, d.size(2, 9), d.size(2, 9)});
         return at::batch_norm(x, d.normal({channels}), d.normal({channels}), {}, {}, true, 0.1, 1e-5, true);
       }},
      {"instance_norm", full,
       [](Draw& d) {
         const Tensor x = d.normal({2, d.size(1, 6), d.size(3, 9), d.size(3, 9)});
         return at::instance_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, true);
       }},
      {"cross_entropy", all,
       [](Draw& d) {
         const Tensor x = rows(d);
         return at::cross_entropy_loss(x, d.integers(x.size(1), {x.size(0)}), {}, at::Reduction::Mean, -100, 0.1);
       }},
      {"mean_square", all,
       [](Draw& d) {
         const Tensor x = rows(d);
         return at::mse_loss(x, d.normal(x.sizes()));
       }},
      {"l1", all,
       [](Draw& d) {
         const Tensor x = rows(d);
         return at::l1_loss(x, d.normal(x.sizes()));
       }},
      {"smooth_l1", all,
       [](Draw& d) {
         const Tensor x = rows(d);
         return at::smooth_l1_loss(x, d.normal(x.sizes()));
       }},
      {"huber", all,
       [](Draw& d) {
         const Tensor x = rows(d);
         return at::huber_loss(x, d.normal(x.sizes()));
       }},
      {"binary_cross_entropy", all,
       [](Draw& d) {
         const Tensor x = rows(d);
         return at::binary_cross_entropy_with_logits(x, d.normal(x.sizes()).detach().sigmoid());
       }},
      {"kl_divergence", full,
       [](Draw& d) {
         const Tensor x = rows(d);
         return at::kl_div(at::log_softmax(x, 1), at::softmax(d.normal(x.sizes()), 1));
       }},
      {"cosine_similarity", full,
       [](Draw& d) {
         const Tensor x = rows(d);
         return at::cosine_similarity(x, d.normal(x.sizes()));
       }},
      {"ctc", full,
       [](Draw& d) {
         const std::int64_t length = d.size(12, 20);
         const Tensor x = at::log_softmax(d.normal({length, 2, 6}), 2);
         const std::vector<std::int64_t> lengths = {length, length}, targets = {4, 5};
         return at::ctc_loss(x, d.integers(5, {2, 5}) + 1, lengths, targets);
       }},
  };
}

}  // namespace stagecraft::concurrency

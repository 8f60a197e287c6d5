// Matrix products, attention, decompositions and Fourier transforms: BLAS, LAPACK and their neighbours.

#include "concurrency/operators.h"

namespace stagecraft::concurrency {

namespace {

using Tensor = at::Tensor;

/// Far from singular.
Tensor positive_definite(Draw& draw) {
  const std::int64_t n = draw.size(2, 24);
  const Tensor a = draw.normal({draw.size(1, 2), n, n});
  return a.matmul(a.mT()) / static_cast<double>(n) + 2 * at::eye(n, a.options());
}

Tensor attention(Draw& draw, bool causal, bool masked, std::int64_t head) {
  const std::int64_t batch = draw.size(1, 2), heads = draw.size(1, 4), length = draw.size(3, 40);
  const auto one = [&] { return draw.normal({batch, heads, length, head}); };
  const Tensor q = one(), k = one(), v = one();
  std::optional<Tensor> mask;
  if (masked) mask = draw.normal({length, length});
  return at::scaled_dot_product_attention(q, k, v, mask, 0.0, causal);
}

}  // namespace

std::vector<Operator> products() {
  const std::vector<at::ScalarType> all = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
  const std::vector<at::ScalarType> full = {at::kFloat, at::kDouble};
  return {
      {"linear", all,
       [](Draw& d) {
         const std::int64_t in = d.size(3, 70), out = d.size(3, 70);
         return at::linear(d.normal({d.size(1, 33), in}), d.normal({out, in}), d.normal({out}));
       }},
      {"linear_3d_no_bias", all,
       [](Draw& d) {
         const std::int64_t in = d.size(3, 70), out = d.size(3, 70);
         return at::linear(d.normal({2, d.size(1, 33), in}), d.normal({out, in}));
       }},
      {"linear_large", all,
       [](Draw& d) {
         return at::linear(d.normal({64, 128}), d.normal({8 * d.size(12, 20), 128}));
       }},
      {"mm", all,
       [](Draw& d) {
         const std::int64_t k = d.size(1, 90);
         return at::mm(d.normal({d.size(1, 60), k}), d.normal({k, d.size(1, 60)}));
       }},
      {"addmm", all,
       [](Draw& d) {
         const std::int64_t k = d.size(1, 60), n = d.size(1, 60);
         return at::addmm(d.normal({n}), d.normal({d.size(1, 40), k}), d.normal({k, n}), 0.5, 2.0);
       }},
      {"bmm", all,
       [](Draw& d) {
         const std::int64_t b = d.size(1, 6), k = d.size(1, 40);
         return at::bmm(d.normal({b, d.size(1, 40), k}), d.normal({b, k, d.size(1, 40)}));
       }},
      {"baddbmm", all,
       [](Draw& d) {
         const std::int64_t b = d.size(1, 6), m = d.size(1, 20), n = d.size(1, 20), k = d.size(1, 20);
         return at::baddbmm(d.normal({b, m, n}), d.normal({b, m, k}), d.normal({b, k, n}));
       }},
      {"matmul_transposed", all,
       [](Draw& d) {
         const std::int64_t n = d.size(2, 30), k = d.size(2, 30);
         return at::matmul(d.normal({2, 3, n, k}), d.normal({2, 3, n, k}).transpose(-2, -1));
       }},
      {"matvec", all,
       [](Draw& d) {
         const std::int64_t n = d.size(2, 100);
         return at::mv(d.normal({d.size(2, 100), n}), d.normal({n}));
       }},
      {"dot", full,
       [](Draw& d) {
         const std::int64_t n = d.size(2, 2000);
         return at::dot(d.normal({n}), d.normal({n}));
       }},
      {"outer", all, [](Draw& d) { return at::outer(d.normal({d.size(1, 80)}), d.normal({d.size(1, 80)})); }},
      {"einsum", all,
       [](Draw& d) {
         const std::int64_t h = d.size(1, 6), k = d.size(1, 20);
         return at::einsum("bthk,bshk->bhts", {d.normal({2, d.size(1, 12), h, k}), d.normal({2, d.size(1, 12), h, k})});
       }},
      {"integer_mm",
       {at::kFloat},
       [](Draw& d) {
         const std::int64_t k = 8 * d.size(2, 8);
         const auto bytes = [&](std::int64_t m, std::int64_t n) {
           return (d.integers(200, {m, n}) - 100).to(at::kChar);
         };
         return at::_int_mm(bytes(8 * d.size(3, 6), k), bytes(k, 8 * d.size(2, 6)));
       }},
      {"attention", all, [](Draw& d) { return attention(d, false, false, 16); }},
      {"attention_causal", all, [](Draw& d) { return attention(d, true, false, 32); }},
      {"attention_masked", full, [](Draw& d) { return attention(d, false, true, 8); }},
      {"rfft", full,
       [](Draw& d) {
         return at::fft_rfft(d.normal({3, d.size(4, 200)})).abs();
       }},
      {"fft_and_back", full,
       [](Draw& d) {
         const std::int64_t n = d.size(4, 100);
         return at::fft_irfft(at::fft_rfft(d.normal({2, n})), n);
       }},
      {"fft2", full,
       [](Draw& d) {
         return at::fft_fft2(d.normal({2, d.size(3, 20), d.size(3, 20)})).abs();
       }},
      {"cholesky", full, [](Draw& d) { return at::linalg_cholesky(positive_definite(d)); }},
      {"inverse", full, [](Draw& d) { return at::linalg_inv(positive_definite(d)); }},
      {"determinant", full, [](Draw& d) { return at::linalg_det(positive_definite(d)); }},
      {"eigenvalues", full, [](Draw& d) { return at::linalg_eigvalsh(positive_definite(d)); }},
      {"singular_values", full, [](Draw& d) { return at::linalg_svdvals(positive_definite(d)); }},
      {"svd", full, [](Draw& d) { return std::get<0>(at::linalg_svd(positive_definite(d))).abs(); }},
      {"qr", full, [](Draw& d) { return std::get<1>(at::linalg_qr(positive_definite(d))); }},
      {"matrix_exp", full, [](Draw& d) { return at::linalg_matrix_exp(positive_definite(d)); }},
      {"solve", full,
       [](Draw& d) {
         const Tensor a = positive_definite(d);
         return at::linalg_solve(a, d.normal({a.size(0), a.size(1), 3}));
       }},
      {"triangular_solve", full,
       [](Draw& d) {
         const Tensor a = positive_definite(d);
         return at::linalg_solve_triangular(a.tril(), d.normal({a.size(0), a.size(1), 3}), /*upper=*/false);
       }},
  };
}

}  // namespace stagecraft::concurrency

// Looking up, scattering, sorting, joining.

#include "concurrency/operators.h"

namespace stagecraft::concurrency {
namespace {

using Tensor = at::Tensor;

Tensor table(Draw& draw) { return draw.normal({draw.size(2, 40), draw.size(1, 40)}); }

}  // namespace

std::vector<Operator> indexing() {
  const std::vector<at::ScalarType> all = {at::kFloat, at::kDouble, at::kBFloat16};
  return {
      {"embedding", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return at::embedding(t, d.integers(t.size(0), {3, d.size(1, 20)}), 0);
       }},
      {"embedding_bag",
       {at::kFloat, at::kDouble},
       [](Draw& d) {
         const Tensor t = table(d);
         const Tensor where = d.integers(t.size(0), {12});
         return std::get<0>(at::embedding_bag(t, where, at::arange(0, 12, 4), false, 1));
       }},
      {"index_select", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return t.index_select(0, d.integers(t.size(0), {d.size(1, 50)}));
       }},
      {"index", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return t.index({d.integers(t.size(0), {30}), d.integers(t.size(1), {30})});
       }},
      {"index_put", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return t.index_put({d.integers(t.size(0), {30})}, d.normal({t.size(1)}), /*accumulate=*/true);
       }},
      {"index_add", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return t.index_add(0, d.integers(t.size(0), {25}), d.normal({25, t.size(1)}));
       }},
      {"gather", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return t.gather(0, d.integers(t.size(0), {d.size(1, 40), t.size(1)}));
       }},
      {"scatter_add", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return t.scatter_add(0, d.integers(t.size(0), {20, t.size(1)}), d.normal({20, t.size(1)}));
       }},
      {"scatter_reduce", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return t.scatter_reduce(0, d.integers(t.size(0), {20, t.size(1)}), d.normal({20, t.size(1)}), "amax");
       }},
      {"take", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return t.take(d.integers(t.numel(), {60}));
       }},
      {"masked_fill", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return t.masked_fill(d.integers(2, t.sizes()).to(at::kBool), -1.5);
       }},
      {"masked_select", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return t.masked_select(d.integers(2, t.sizes()).to(at::kBool));
       }},
      {"where", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return at::where(d.integers(2, t.sizes()).to(at::kBool), t, d.normal(t.sizes()));
       }},
      {"sort", all, [](Draw& d) { return std::get<0>(table(d).sort(0, true)); }},
      {"topk", all, [](Draw& d) { return std::get<0>(table(d).topk(2, 0)); }},
      {"kthvalue", all, [](Draw& d) { return std::get<0>(table(d).kthvalue(2, 0)); }},
      {"median", all, [](Draw& d) { return std::get<0>(table(d).median(0)); }},
      {"histogram", {at::kFloat}, [](Draw& d) { return at::bincount(d.integers(20, {d.size(1, 300)})); }},
      {"concatenate", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return at::cat({t, d.normal({3, t.size(1)}), t.flip(0)});
       }},
      {"stack_and_split", all,
       [](Draw& d) {
         const Tensor t = table(d);
         return at::stack(t.chunk(2, 0)[0].unbind(0)).contiguous().transpose(0, 1).reshape({-1});
       }},
      {"triangle", all, [](Draw& d) { return table(d).tril() + 1; }},
      {"repeat", all,
       [](Draw& d) {
         return table(d).repeat({2, 3}).roll(5, 0);
       }},
      {"repeat_interleave", all, [](Draw& d) { return table(d).repeat_interleave(3, 0); }},
      {"permute", all,
       [](Draw& d) {
         return d.normal({3, d.size(1, 9), d.size(1, 9), 4}).permute({2, 0, 3, 1}).contiguous();
       }},
  };
}

}  // namespace stagecraft::concurrency

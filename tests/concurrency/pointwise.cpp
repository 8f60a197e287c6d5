// Elementwise functions: vectorised, some by MKL or with tables that are set up at the first call.

#include "concurrency/operators.h"

namespace stagecraft::concurrency {
namespace {

using Tensor = at::Tensor;
using Function = Tensor (*)(const Tensor&);

struct Named {
  const char* name;
  Function apply;
  double low = -3;
  double high = 3;
};

const Named kFunctions[] = {
    {"exp", [](const Tensor& x) { return x.exp(); }},
    {"exp2", [](const Tensor& x) { return x.exp2(); }},
    {"expm1", [](const Tensor& x) { return x.expm1(); }},
    {"log", [](const Tensor& x) { return x.log(); }, 0.1, 9},
    {"log2", [](const Tensor& x) { return x.log2(); }, 0.1, 9},
    {"log10", [](const Tensor& x) { return x.log10(); }, 0.1, 9},
    {"log1p", [](const Tensor& x) { return x.log1p(); }, -0.5, 9},
    {"sqrt", [](const Tensor& x) { return x.sqrt(); }, 0.1, 9},
    {"rsqrt", [](const Tensor& x) { return x.rsqrt(); }, 0.1, 9},
    {"sin", [](const Tensor& x) { return x.sin(); }, -30, 30},
    {"cos", [](const Tensor& x) { return x.cos(); }, -30, 30},
    {"tan", [](const Tensor& x) { return x.tan(); }, -1.2, 1.2},
    {"asin", [](const Tensor& x) { return x.asin(); }, -0.9, 0.9},
    {"acos", [](const Tensor& x) { return x.acos(); }, -0.9, 0.9},
    {"atan", [](const Tensor& x) { return x.atan(); }},
    {"sinh", [](const Tensor& x) { return x.sinh(); }},
    {"cosh", [](const Tensor& x) { return x.cosh(); }},
    {"tanh", [](const Tensor& x) { return x.tanh(); }},
    {"asinh", [](const Tensor& x) { return x.asinh(); }},
    {"acosh", [](const Tensor& x) { return x.acosh(); }, 1.1, 9},
    {"atanh", [](const Tensor& x) { return x.atanh(); }, -0.9, 0.9},
    {"erf", [](const Tensor& x) { return x.erf(); }},
    {"erfc", [](const Tensor& x) { return x.erfc(); }},
    {"erfinv", [](const Tensor& x) { return x.erfinv(); }, -0.9, 0.9},
    {"lgamma", [](const Tensor& x) { return x.lgamma(); }, 0.5, 9},
    {"digamma", [](const Tensor& x) { return x.digamma(); }, 0.5, 9},
    {"pow", [](const Tensor& x) { return x.pow(2.7); }, 0.1, 4},
    {"cube", [](const Tensor& x) { return x.pow(3); }},
    {"reciprocal", [](const Tensor& x) { return x.reciprocal(); }, 0.1, 9},
    {"sigmoid", [](const Tensor& x) { return x.sigmoid(); }},
    {"log_sigmoid", [](const Tensor& x) { return at::log_sigmoid(x); }},
    {"relu", [](const Tensor& x) { return x.relu(); }},
    {"leaky_relu", [](const Tensor& x) { return at::leaky_relu(x, 0.2); }},
    {"elu", [](const Tensor& x) { return at::elu(x); }},
    {"selu", [](const Tensor& x) { return at::selu(x); }},
    {"gelu", [](const Tensor& x) { return at::gelu(x); }},
    {"gelu_tanh", [](const Tensor& x) { return at::gelu(x, "tanh"); }},
    {"silu", [](const Tensor& x) { return at::silu(x); }},
    {"mish", [](const Tensor& x) { return at::mish(x); }},
    {"softplus", [](const Tensor& x) { return at::softplus(x); }},
    {"hardswish", [](const Tensor& x) { return at::hardswish(x); }},
    {"clamp", [](const Tensor& x) { return x.clamp(-1, 1); }},
    {"abs", [](const Tensor& x) { return x.abs(); }},
    {"arithmetic", [](const Tensor& x) { return (x * x.roll(1) + x / (x.abs() + 1) - 2 * x).fmod(0.7); }},
    {"atan2", [](const Tensor& x) { return at::atan2(x, x.flip(-1) + 4); }},
    {"logaddexp", [](const Tensor& x) { return at::logaddexp(x, x.flip(-1)); }},
    {"to_bfloat16_and_back", [](const Tensor& x) { return x.to(at::kBFloat16).to(x.scalar_type()); }},
};

}  // namespace

std::vector<Operator> pointwise() {
  std::vector<Operator> all;
  for (const Named& function : kFunctions) {
    all.push_back({function.name, {at::kFloat, at::kDouble, at::kBFloat16}, [&function](Draw& draw) {
                     // Below and above what LibTorch hands to vector functions in one piece.
                     const std::int64_t count = draw.size(1, 3000);
                     return function.apply(draw.uniform({draw.size(1, 3), count}, function.low, function.high));
                   }});
  }
  return all;
}

}  // namespace stagecraft::concurrency

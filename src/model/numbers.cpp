#include "numbers.h"

#include <cmath>
#include <map>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

using c10::IValue;
using Operands = std::vector<IValue>;

bool is_integer(const IValue& value) { return value.isInt() || value.isBool(); }
std::int64_t integer(const IValue& value) { return value.isBool() ? (value.toBool() ? 1 : 0) : value.toInt(); }
double real(const IValue& value) { return is_integer(value) ? static_cast<double>(integer(value)) : value.toDouble(); }
bool truth(const IValue& value) { return is_integer(value) ? integer(value) != 0 : value.toDouble() != 0; }

const IValue& operand(const Operands& operands, std::size_t i) {
  if (i >= operands.size()) throw InvalidArgument("arithmetic on sizes lacks an operand");
  return operands[i];
}

void refuse_zero(bool zero) {
  if (zero) throw InvalidArgument("a size is divided by zero");
}

std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  refuse_zero(b == 0);
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  for (; exponent > 0; --exponent) result *= base;
  return result;
}

/// Computes on integers if both operands are, otherwise on reals, like Python.
template <typename OnIntegers, typename OnReals>
IValue either(const Operands& operands, const OnIntegers& on_integers, const OnReals& on_reals) {
  const IValue& a = operand(operands, 0);
  const IValue& b = operand(operands, 1);
  if (is_integer(a) && is_integer(b)) return IValue(on_integers(integer(a), integer(b)));
  return IValue(on_reals(real(a), real(b)));
}

/// An operation given by one expression of `a` and `b`.
#define STAGECRAFT_EITHER(expression)                                                             \
  [](const Operands& o) {                                                                         \
    return either(                                                                                \
        o, [](auto a, auto b) { return expression; }, [](auto a, auto b) { return expression; }); \
  }

IValue sum_of(const Operands& operands) {
  std::int64_t total = 0;
  for (const IValue& each : operands) {
    if (each.isIntList()) {
      for (const std::int64_t item : each.toIntVector()) total += item;
    } else {
      total += integer(each);
    }
  }
  return total;
}

template <double (*Round)(double)>
IValue rounded(const Operands& o) {
  if (is_integer(operand(o, 0))) return integer(o[0]);
  return static_cast<std::int64_t>(Round(real(o[0])));
}

const std::map<std::string_view, NumberOperation>& operations() {
  static const std::map<std::string_view, NumberOperation> all = {
      {"_operator.add", STAGECRAFT_EITHER(a + b)},
      {"_operator.sub", STAGECRAFT_EITHER(a - b)},
      {"_operator.mul", STAGECRAFT_EITHER(a * b)},
      {"_operator.truediv",
       [](const Operands& o) {
         refuse_zero(real(operand(o, 1)) == 0);
         return IValue(real(o[0]) / real(o[1]));
       }},
      {"_operator.floordiv",
       [](const Operands& o) {
         return either(o, floor_divided, [](double a, double b) { return std::floor(a / b); });
       }},
      {"_operator.mod",
       [](const Operands& o) {
         return either(
             o, [](std::int64_t a, std::int64_t b) { return a - floor_divided(a, b) * b; },
             [](double a, double b) { return a - std::floor(a / b) * b; });
       }},
      {"_operator.pow",
       [](const Operands& o) {
         if (is_integer(operand(o, 0)) && is_integer(operand(o, 1)) && integer(o[1]) >= 0) {
           return IValue(power(integer(o[0]), integer(o[1])));
         }
         return IValue(std::pow(real(o[0]), real(operand(o, 1))));
       }},
      {"_operator.neg",
       [](const Operands& o) { return is_integer(operand(o, 0)) ? IValue(-integer(o[0])) : IValue(-real(o[0])); }},
      {"_operator.pos", [](const Operands& o) { return operand(o, 0); }},
      {"_operator.eq", STAGECRAFT_EITHER(a == b)},
      {"_operator.ne", STAGECRAFT_EITHER(a != b)},
      {"_operator.lt", STAGECRAFT_EITHER(a < b)},
      {"_operator.le", STAGECRAFT_EITHER(a <= b)},
      {"_operator.gt", STAGECRAFT_EITHER(a > b)},
      {"_operator.ge", STAGECRAFT_EITHER(a >= b)},
      {"_operator.and_", [](const Operands& o) { return IValue(truth(operand(o, 0)) && truth(operand(o, 1))); }},
      {"_operator.or_", [](const Operands& o) { return IValue(truth(operand(o, 0)) || truth(operand(o, 1))); }},
      {"_operator.not_", [](const Operands& o) { return IValue(!truth(operand(o, 0))); }},
      {"torch.sym_not", [](const Operands& o) { return IValue(!truth(operand(o, 0))); }},
      {"torch.sym_max", STAGECRAFT_EITHER(a < b ? b : a)},
      {"torch.sym_min", STAGECRAFT_EITHER(b < a ? b : a)},
      {"torch.sym_float", [](const Operands& o) { return IValue(real(operand(o, 0))); }},
      {"torch.sym_int", rounded<std::trunc>},
      {"torch.sym_sqrt", [](const Operands& o) { return IValue(std::sqrt(real(operand(o, 0)))); }},
      {"torch._sym_sqrt", [](const Operands& o) { return IValue(std::sqrt(real(operand(o, 0)))); }},
      {"torch.sym_ite", [](const Operands& o) { return truth(operand(o, 0)) ? operand(o, 1) : operand(o, 2); }},
      {"torch.sym_sum", sum_of},
      {"math.ceil", rounded<std::ceil>},
      {"math.floor", rounded<std::floor>},
      {"math.trunc", rounded<std::trunc>},
      {"builtins.round", rounded<std::nearbyint>},
  };
  return all;
}

#undef STAGECRAFT_EITHER

}  // namespace

NumberOperation find_number_operation(std::string_view target) {
  const auto found = operations().find(target);
  return found == operations().end() ? nullptr : found->second;
}

}  // namespace stagecraft

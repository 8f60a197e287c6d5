#include "stagecraft/checkpoint/dtypes.h"

#include <algorithm>
#include <array>
#include <utility>

namespace stagecraft {
namespace {

constexpr std::array kTypes = {std::pair{at::kBool, "BOOL"},
                               std::pair{at::kByte, "U8"},
                               std::pair{at::kChar, "I8"},
                               std::pair{at::kShort, "I16"},
                               std::pair{at::kInt, "I32"},
                               std::pair{at::kLong, "I64"},
                               std::pair{at::kUInt16, "U16"},
                               std::pair{at::kUInt32, "U32"},
                               std::pair{at::kUInt64, "U64"},
                               std::pair{at::kHalf, "F16"},
                               std::pair{at::kBFloat16, "BF16"},
                               std::pair{at::kFloat, "F32"},
                               std::pair{at::kDouble, "F64"},
                               std::pair{at::kComplexFloat, "C64"},
                               std::pair{at::kFloat8_e4m3fn, "F8_E4M3"},
                               std::pair{at::kFloat8_e5m2, "F8_E5M2"}};

}  // namespace

std::string dtype_name(at::ScalarType type) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& own) { return own.first == type; });
  return found == kTypes.end() ? "" : found->second;
}

std::optional<at::ScalarType> dtype_of(std::string_view name) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& own) { return own.second == name; });
  if (found == kTypes.end()) return std::nullopt;
  return found->first;
}

}  // namespace stagecraft

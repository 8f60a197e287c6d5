#include "dtypes.h"

namespace stagecraft {

std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return "BOOL";
    case at::kByte:
      return "U8";
    case at::kChar:
      return "I8";
    case at::kShort:
      return "I16";
    case at::kInt:
      return "I32";
    case at::kLong:
      return "I64";
    case at::kUInt16:
      return "U16";
    case at::kUInt32:
      return "U32";
    case at::kUInt64:
      return "U64";
    case at::kHalf:
      return "F16";
    case at::kBFloat16:
      return "BF16";
    case at::kFloat:
      return "F32";
    case at::kDouble:
      return "F64";
    case at::kComplexFloat:
      return "C64";
    case at::kFloat8_e4m3fn:
      return "F8_E4M3";
    case at::kFloat8_e5m2:
      return "F8_E5M2";
    default:
      return {};
  }
}

}  // namespace stagecraft

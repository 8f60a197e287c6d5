#include "torch_types.h"

#include "stagecraft/core/error.h"

namespace stagecraft {

at::ScalarType scalar_type(graph::ElementType type) {
  using graph::ElementType;
  switch (type) {
    case ElementType::kByte:
      return at::kByte;
    case ElementType::kChar:
      return at::kChar;
    case ElementType::kShort:
      return at::kShort;
    case ElementType::kInt:
      return at::kInt;
    case ElementType::kLong:
      return at::kLong;
    case ElementType::kHalf:
      return at::kHalf;
    case ElementType::kFloat:
      return at::kFloat;
    case ElementType::kDouble:
      return at::kDouble;
    case ElementType::kComplexHalf:
      return at::kComplexHalf;
    case ElementType::kComplexFloat:
      return at::kComplexFloat;
    case ElementType::kComplexDouble:
      return at::kComplexDouble;
    case ElementType::kBool:
      return at::kBool;
    case ElementType::kBFloat16:
      return at::kBFloat16;
    case ElementType::kUInt16:
      return at::kUInt16;
    case ElementType::kFloat8E4M3FN:
      return at::kFloat8_e4m3fn;
    case ElementType::kFloat8E5M2:
      return at::kFloat8_e5m2;
    case ElementType::kFloat8E4M3FNUZ:
      return at::kFloat8_e4m3fnuz;
    case ElementType::kFloat8E5M2FNUZ:
      return at::kFloat8_e5m2fnuz;
    case ElementType::kFloat8E8M0FNU:
      return at::kFloat8_e8m0fnu;
    case ElementType::kUInt32:
      return at::kUInt32;
    case ElementType::kUInt64:
      return at::kUInt64;
    case ElementType::kUnknown:
      break;
  }
  throw InternalError("an unknown element type should have been refused when the file was read");
}

at::Layout layout(graph::Layout layout) {
  switch (layout) {
    case graph::Layout::kSparseCoo:
      return at::kSparse;
    case graph::Layout::kSparseCsr:
      return at::kSparseCsr;
    case graph::Layout::kSparseCsc:
      return at::kSparseCsc;
    case graph::Layout::kSparseBsr:
      return at::kSparseBsr;
    case graph::Layout::kSparseBsc:
      return at::kSparseBsc;
    case graph::Layout::kMkldnn:
      return at::kMkldnn;
    case graph::Layout::kStrided:
      return at::kStrided;
  }
  throw InternalError("an unknown layout should have been refused when the file was read");
}

at::MemoryFormat memory_format(graph::MemoryFormat format) {
  switch (format) {
    case graph::MemoryFormat::kContiguous:
      return at::MemoryFormat::Contiguous;
    case graph::MemoryFormat::kChannelsLast:
      return at::MemoryFormat::ChannelsLast;
    case graph::MemoryFormat::kChannelsLast3d:
      return at::MemoryFormat::ChannelsLast3d;
    case graph::MemoryFormat::kPreserve:
      return at::MemoryFormat::Preserve;
  }
  throw InternalError("an unknown memory format should have been refused when the file was read");
}

TensorSpec spec_of(const graph::TensorType& type) {
  TensorSpec spec;
  spec.dtype = scalar_type(type.element);
  for (const graph::Size& size : type.sizes) spec.sizes.push_back(size.fixed() ? size.value : TensorSpec::kAny);
  return spec;
}

}  // namespace stagecraft

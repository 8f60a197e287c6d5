#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include "stagecraft/graph/program.h"

/// Converts the enumerations of the file format to LibTorch's.
namespace stagecraft {

at::ScalarType scalar_type(graph::ElementType type);
at::Layout layout(graph::Layout layout);
at::MemoryFormat memory_format(graph::MemoryFormat format);

}  // namespace stagecraft

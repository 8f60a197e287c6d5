#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include "stagecraft/graph/program.h"
#include "stagecraft/stage/tensor_spec.h"

/// Converts types of the file format to LibTorch's.
namespace stagecraft {

at::ScalarType scalar_type(graph::ElementType type);
at::Layout layout(graph::Layout layout);
at::MemoryFormat memory_format(graph::MemoryFormat format);
/// Dynamic sizes are any.
TensorSpec spec_of(const graph::TensorType& type);

}  // namespace stagecraft

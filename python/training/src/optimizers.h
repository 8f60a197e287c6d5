#pragma once

#include <vector>

#include "stagecraft/runtime/pipeline.h"

namespace stagecraft::python {

/// Pipeline::attach for an optimizer of Python that has these tensors. `by_element`: it is known to work element by
/// element.
void attach_tensors(Pipeline& pipeline, const std::vector<at::Tensor>& tensors, bool by_element);

}  // namespace stagecraft::python

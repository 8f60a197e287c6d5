#pragma once

#include "objects.h"

namespace stagecraft::python {

/// Ranks of a torch.distributed process group.
void bind_process_groups(py::module_& module);

}  // namespace stagecraft::python

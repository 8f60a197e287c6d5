#pragma once

#include "objects.h"

namespace stagecraft::python {

/// Ranks as threads of this process.
void bind_rank_threads(py::module_& module);

}  // namespace stagecraft::python

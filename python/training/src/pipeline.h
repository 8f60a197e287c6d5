#pragma once

#include "objects.h"

namespace stagecraft::python {

void bind_pipeline(py::module_& module);

}  // namespace stagecraft::python

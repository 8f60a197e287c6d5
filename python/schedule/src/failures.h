#pragma once

#include <string>

#include "convert.h"
#include "stagecraft/passes/verify.h"

/// C++ exceptions as Python exceptions. The types are defined in stagecraft/errors.py.
namespace stagecraft::python {

/// Sets the Python exception for the C++ exception in flight; call it in a catch block.
void set_failure();

/// Sets TypeError and throws PythonError: "ranks: got 'four' (str), expected a whole number".
[[noreturn]] void refuse_type(const std::string& name, PyObject* value, const std::string& expected);

/// The rank, step, action, cycle of waiting ranks, excerpt and texts of a refusal.
cli::Json refusal_json(const Refusal& refusal);

/// Sets ScheduleError with the refusal's full text and its parts, and throws PythonError.
[[noreturn]] void raise_refusal(const Refusal& refusal);

}  // namespace stagecraft::python

#pragma once

#include <exception>
#include <string>

#include "objects.h"
#include "stagecraft/core/error.h"

/// Errors on their way between Python and C++.
namespace stagecraft::python {

/// What Python code has raised inside a step. what() is "ValueError: no such layer".
class PythonError : public std::exception {
 public:
  /// Called with the GIL.
  explicit PythonError(py::error_already_set& error);
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] py::object exception() const { return py::reinterpret_borrow<py::object>(exception_.get()); }

 private:
  Owned exception_;
  std::string text_;
};

/// What is no Exception there, such as KeyboardInterrupt and SystemExit.
class PythonInterruption : public PythonError, public Interruption {
  using PythonError::PythonError;
};

/// Whether it is one.
bool is_interruption(const py::error_already_set& error);

/// Takes the GIL and runs `work`, which calls Python.
template <typename Work>
auto in_python(const Work& work) {
  const py::gil_scoped_acquire gil;
  PyErr_Clear();  // that of a failed backward, which its C++ exception carries too
  try {
    return work();
  } catch (py::error_already_set& error) {
    if (is_interruption(error)) throw PythonInterruption(error);
    throw PythonError(error);
  }
}

/// Makes errors of C++ arrive as exceptions of the classes in stagecraft.torch._errors, with the same text. The error
/// of an action, such as what a module has raised, is the __cause__ of StepError; if that is no Exception, such as
/// KeyboardInterrupt, it arrives itself.
void register_errors();

}  // namespace stagecraft::python

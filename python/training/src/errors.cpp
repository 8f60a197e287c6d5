#include "errors.h"

#include <torch/csrc/Exceptions.h>

#include "stagecraft/core/error.h"

namespace stagecraft::python {
namespace {

py::object exception_of(py::error_already_set& error) {
  py::object value = error.value();
  if (error.trace()) PyException_SetTraceback(value.ptr(), error.trace().ptr());
  return value;
}

std::string text_of(py::handle exception) {
  const std::string type = Py_TYPE(exception.ptr())->tp_name;
  PyObject* const text = PyObject_Str(exception.ptr());
  if (text == nullptr) {
    PyErr_Clear();
    return type;
  }
  const auto owned = py::reinterpret_steal<py::str>(text);
  const std::string words = owned;
  return words.empty() ? type : type + ": " + words;
}

/// The Python exception that a C++ exception carries; null if it carries none.
py::object carried(const std::exception_ptr& pointer) {
  if (!pointer) return {};
  try {
    std::rethrow_exception(pointer);
  } catch (const PythonError& error) {
    return error.exception();
  } catch (py::error_already_set& error) {
    return exception_of(error);
  } catch (python_error& error) {  // LibTorch's own, from a node of Python's in a backward
    error.restore();
    py::error_already_set fetched;
    return exception_of(fetched);
  } catch (const std::exception& error) {
    const auto* nested = dynamic_cast<const std::nested_exception*>(&error);
    return nested == nullptr ? py::object() : carried(nested->nested_ptr());
  } catch (...) {
    return {};
  }
}

py::object made(const char* type, const std::exception& error) {
  return py::module_::import("stagecraft.torch._errors").attr(type)(error.what());
}

void raise(const py::object& exception, const std::exception& error) {
  const auto* nested = dynamic_cast<const std::nested_exception*>(&error);
  py::object cause = nested == nullptr ? py::object() : carried(nested->nested_ptr());
  if (cause && PyObject_IsInstance(cause.ptr(), PyExc_Exception) == 0) {
    PyErr_SetObject(py::type::of(cause).ptr(), cause.ptr());
    return;
  }
  if (cause) PyException_SetCause(exception.ptr(), cause.release().ptr());
  PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
}

/// The most derived types come first.
void translate(std::exception_ptr pointer) {
  if (!pointer) return;
  try {
    std::rethrow_exception(pointer);
  } catch (const PythonError& error) {
    const py::object own = error.exception();
    PyErr_SetObject(py::type::of(own).ptr(), own.ptr());
  } catch (python_error& error) {
    error.restore();
  } catch (const StepError& error) {
    const py::object exception = made("StepError", error);
    exception.attr("rank") = error.rank().value;
    exception.attr("action") = error.action();
    raise(exception, error);
  } catch (const ScheduleError& error) {
    const py::object exception = made("ScheduleError", error);
    exception.attr("rank") = error.rank().value;
    exception.attr("step") = error.step();
    exception.attr("action") = error.action();
    raise(exception, error);
  } catch (const ParseError& error) {
    const py::object exception = made("ParseError", error);
    exception.attr("row") = error.row();
    exception.attr("column") = error.column();
    raise(exception, error);
  } catch (const ShapeError& error) {
    const py::object exception = made("ShapeError", error);
    exception.attr("stage") = error.stage().value;
    raise(exception, error);
  } catch (const TransportError& error) {
    const bool timeout = dynamic_cast<const TimeoutError*>(&error) != nullptr;
    const bool aborted = dynamic_cast<const AbortedError*>(&error) != nullptr;
    const py::object exception = made(timeout ? "TimeoutError" : aborted ? "AbortedError" : "TransportError", error);
    exception.attr("peer") = error.peer().value;
    raise(exception, error);
  } catch (const FileError& error) {
    const py::object exception = made("FileError", error);
    exception.attr("path") = error.path();
    raise(exception, error);
  } catch (const InvalidArgument& error) {
    raise(made("InvalidArgument", error), error);
  } catch (const InternalError& error) {
    raise(made("InternalError", error), error);
  } catch (const Error& error) {
    raise(made("Error", error), error);
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
  }
}

}  // namespace

PythonError::PythonError(py::error_already_set& error) {
  py::object own = exception_of(error);
  text_ = text_of(own);
  exception_ = Owned(std::move(own));
}

void register_errors() { py::register_local_exception_translator(&translate); }

}  // namespace stagecraft::python

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

/// With what it was raised from: other ranks get the text alone.
std::string text_with_causes(const py::object& exception) {
  constexpr int kMostCauses = 4;
  std::string text = text_of(exception);
  py::object own = exception;
  for (int i = 0; i < kMostCauses; ++i) {
    own = py::reinterpret_steal<py::object>(PyException_GetCause(own.ptr()));
    if (!own) break;
    text += "\nbecause of " + text_of(own);
  }
  return text;
}

py::object as_python(const std::exception_ptr& pointer);

/// An exception of one of our classes. What is nested in a C++ error becomes its cause; if that is no Exception, such
/// as KeyboardInterrupt, it takes the place of the error.
template <typename Fill>
py::object made(const char* type, const std::exception& error, const Fill& fill) {
  const auto* nested = dynamic_cast<const std::nested_exception*>(&error);
  py::object cause = nested == nullptr ? py::object() : as_python(nested->nested_ptr());
  if (cause && PyObject_IsInstance(cause.ptr(), PyExc_Exception) == 0) return cause;
  py::object exception = py::module_::import("stagecraft.torch._errors").attr(type)(error.what());
  fill(exception);
  if (cause) PyException_SetCause(exception.ptr(), cause.release().ptr());
  return exception;
}
py::object made(const char* type, const std::exception& error) {
  return made(type, error, [](const py::object&) {});
}

py::object made_transport_error(const TransportError& error) {
  const bool timeout = dynamic_cast<const TimeoutError*>(&error) != nullptr;
  const bool aborted = dynamic_cast<const AbortedError*>(&error) != nullptr;
  return made(timeout   ? "TimeoutError"
              : aborted ? "AbortedError"
                        : "TransportError",
              error, [&](const py::object& exception) { exception.attr("peer") = error.peer().value; });
}

/// The Python exception for a C++ exception; null if there is none. The most derived types come first.
py::object as_python(const std::exception_ptr& pointer) {
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
  } catch (const StepError& error) {
    return made("StepError", error, [&](const py::object& exception) {
      exception.attr("rank") = error.rank().value;
      exception.attr("action") = error.action();
    });
  } catch (const ScheduleError& error) {
    return made("ScheduleError", error, [&](const py::object& exception) {
      exception.attr("rank") = error.rank().value;
      exception.attr("step") = error.step();
      exception.attr("action") = error.action();
    });
  } catch (const ParseError& error) {
    return made("ParseError", error, [&](const py::object& exception) {
      exception.attr("row") = error.row();
      exception.attr("column") = error.column();
    });
  } catch (const ShapeError& error) {
    return made("ShapeError", error,
                [&](const py::object& exception) { exception.attr("stage") = error.stage().value; });
  } catch (const TransportError& error) {
    return made_transport_error(error);
  } catch (const FileError& error) {
    return made("FileError", error, [&](const py::object& exception) { exception.attr("path") = error.path(); });
  } catch (const InvalidArgument& error) {
    return made("InvalidArgument", error);
  } catch (const InternalError& error) {
    return made("InternalError", error);
  } catch (const Error& error) {
    return made("Error", error);
  } catch (...) {
    return {};
  }
}

void translate(std::exception_ptr pointer) {
  if (!pointer) return;
  PyErr_Clear();  // LibTorch's engine also leaves the error in this thread; what is called below must not see it
  const py::object exception = as_python(pointer);
  if (exception) {
    PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
    return;
  }
  try {
    std::rethrow_exception(pointer);
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
  }
}

}  // namespace

PythonError::PythonError(py::error_already_set& error) {
  py::object own = exception_of(error);
  text_ = text_with_causes(own);
  exception_ = Owned(std::move(own));
}

bool is_interruption(const py::error_already_set& error) { return !error.matches(PyExc_Exception); }

void register_errors() { py::register_local_exception_translator(&translate); }

}  // namespace stagecraft::python

#pragma once

#include <torch/extension.h>

#include <memory>
#include <string>

#include "stagecraft/stage/value.h"

/// Python objects in C++, and values of stages as Python objects.
namespace stagecraft::python {

namespace py = pybind11;

/// A Python object that C++ owns a part of. The last copy may be destroyed in any thread, with or without the GIL.
class Owned {
 public:
  Owned() = default;
  explicit Owned(py::object object);
  explicit operator bool() const { return held_ != nullptr; }
  [[nodiscard]] py::handle get() const { return held_.get(); }

 private:
  std::shared_ptr<PyObject> held_;
};

/// A Python object that lives at least as long as the Python object of its pipeline, which has it in its list `keep`.
/// C++ does not own it: otherwise a loss that refers to the pipeline, such as a method of the trainer that has it,
/// would be a cycle that Python's garbage collector cannot see.
class Borrowed {
 public:
  Borrowed() = default;
  Borrowed(const py::object& object, py::list& keep) : object_(object.ptr()) { keep.append(object); }
  explicit operator bool() const { return object_ != nullptr; }
  [[nodiscard]] py::handle get() const { return object_; }

 private:
  PyObject* object_ = nullptr;
};

/// What a user gives to a step. Tensors, also those inside tuples, lists and dicts, are cut into microbatches; anything
/// without tensors reaches the module as the same object.
Value from_input(py::handle object);
/// Positional arguments.
ValueList from_arguments(py::handle tuple);
ValueDict from_keywords(py::handle dict);

/// What a module returned. A tuple or a list is the arguments of the next stage. Of the last stage anything is taken;
/// of others throws InvalidArgument for an object that is not made of tensors, numbers, text, None, tuples, lists and
/// dicts.
Value from_output(py::handle object, bool is_last, int stage);

/// A Python object as one value, whatever it is.
Value as_opaque(py::object object);

/// Tuples, lists and named tuples come back as what they were.
py::object to_python(const Value& value);
py::tuple to_arguments(const ValueList& values);
py::dict to_keywords(const ValueDict& values);

}  // namespace stagecraft::python

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "failures.h"

/// Arguments of the module's functions. A function is called with a tuple; each getter names the parameter, for errors.
namespace stagecraft::python {

/// What a capsule of a C++ value is called; specialised beside the functions that make it.
template <typename Value>
struct CapsuleName;

/// A capsule that owns the value. The value must not be changed afterwards: functions read it without the GIL.
template <typename Value>
Object wrapped(Value value) {
  auto owned = std::make_unique<Value>(std::move(value));
  Object capsule(PyCapsule_New(owned.get(), CapsuleName<Value>::kName, [](PyObject* own) {
    delete static_cast<Value*>(PyCapsule_GetPointer(own, CapsuleName<Value>::kName));
  }));
  (void)owned.release();
  return capsule;
}

class Arguments {
 public:
  explicit Arguments(PyObject* tuple) : tuple_(tuple) {}

  /// The argument, borrowed. Throws PythonError when there are fewer.
  [[nodiscard]] PyObject* at(Py_ssize_t i) const;
  [[nodiscard]] bool is_none(Py_ssize_t i) const { return at(i) == Py_None; }

  /// UTF-8.
  [[nodiscard]] std::string text(Py_ssize_t i, const std::string& name) const;
  /// Text or bytes.
  [[nodiscard]] std::string contents(Py_ssize_t i, const std::string& name) const;
  /// Bytes of a path, without a byte 0.
  [[nodiscard]] std::string path(Py_ssize_t i, const std::string& name) const;
  /// Anything with __index__ except a bool.
  [[nodiscard]] int integer(Py_ssize_t i, const std::string& name) const;
  [[nodiscard]] int integer_or(Py_ssize_t i, const std::string& name, int otherwise) const;
  [[nodiscard]] std::uint64_t seed(Py_ssize_t i, const std::string& name) const;
  [[nodiscard]] double number(Py_ssize_t i, const std::string& name) const;
  [[nodiscard]] bool flag(Py_ssize_t i, const std::string& name) const;

  /// The value of a capsule, or of an object that holds one as `_capsule`. It lives as long as these arguments.
  template <typename Value>
  [[nodiscard]] const Value& value(Py_ssize_t i, const std::string& name) const {
    return *static_cast<const Value*>(pointer(at(i), name, CapsuleName<Value>::kName, CapsuleName<Value>::kExpected));
  }
  template <typename Value>
  [[nodiscard]] const Value& value_of(PyObject* object, const std::string& name) const {
    return *static_cast<const Value*>(pointer(object, name, CapsuleName<Value>::kName, CapsuleName<Value>::kExpected));
  }
  /// The items of a sequence, borrowed; they live as long as these arguments.
  [[nodiscard]] std::vector<PyObject*> items(PyObject* sequence, const std::string& name) const;
  [[nodiscard]] std::vector<std::string> texts(Py_ssize_t i, const std::string& name) const;

 private:
  void* pointer(PyObject* object, const std::string& name, const char* capsule, const char* expected) const;

  PyObject* tuple_;
  mutable std::vector<Object> held_;
};

std::string text_of(PyObject* value, const std::string& name);

}  // namespace stagecraft::python

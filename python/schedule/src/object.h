#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <utility>

/// References to Python objects, and the GIL.
namespace stagecraft::python {

/// Thrown when a Python exception is set already.
struct PythonError {};

/// An owned reference; may be empty.
class Object {
 public:
  Object() = default;
  /// Takes over a new reference. Throws PythonError for a null one: Python has set the exception.
  explicit Object(PyObject* owned) : object_(owned) {
    if (object_ == nullptr) throw PythonError();
  }
  static Object borrowed(PyObject* object) {
    Py_XINCREF(object);
    return Object(object);
  }
  static Object none() { return borrowed(Py_None); }

  Object(Object&& other) noexcept : object_(other.release()) {}
  Object& operator=(Object&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  ~Object() { Py_XDECREF(object_); }

  [[nodiscard]] PyObject* get() const { return object_; }
  [[nodiscard]] PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_ = nullptr;
};

/// Throws PythonError unless a call that returns a status has succeeded.
inline void check(int status) {
  if (status < 0) throw PythonError();
}

/// Gives up the GIL during its lifetime. A daemon thread that asks for it again after Python has ended is unwound from
/// here (Python up to 3.13), so the destructor must be allowed to throw.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;
  ~GilReleased() noexcept(false) { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

/// Calls `work`, which uses no Python object, without the GIL.
template <typename Work>
auto without_gil(Work&& work) {
  const GilReleased released;
  return work();
}

}  // namespace stagecraft::python

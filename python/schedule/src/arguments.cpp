#include "arguments.h"

#include <climits>

#include "stagecraft/core/error.h"

namespace stagecraft::python {
namespace {

std::string bytes_of(PyObject* value) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  check(PyBytes_AsStringAndSize(value, &bytes, &size));
  return {bytes, static_cast<std::size_t>(size)};
}

/// A whole number between the two; throws InvalidArgument for others.
long long whole_number(PyObject* value, const std::string& name, long long least, long long most) {
  if (PyBool_Check(value) || !PyIndex_Check(value)) refuse_type(name, value, "a whole number");
  const Object index(PyNumber_Index(value));
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(index.get(), &overflow);
  if (number == -1 && overflow == 0 && PyErr_Occurred() != nullptr) throw PythonError();
  if (overflow != 0 || number < least || number > most) {
    throw InvalidArgument(name + ": got " + described(value) + ", must be from " + std::to_string(least) + " to " +
                          std::to_string(most));
  }
  return number;
}

}  // namespace

PyObject* Arguments::at(Py_ssize_t i) const {
  PyObject* item = PyTuple_GetItem(tuple_, i);
  if (item != nullptr) return item;
  PyErr_Clear();
  PyErr_SetString(PyExc_TypeError, "too few arguments: call this through the functions of the package stagecraft");
  throw PythonError();
}

std::string text_of(PyObject* value, const std::string& name) {
  if (!PyUnicode_Check(value)) refuse_type(name, value, "text");
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(value, &size);
  if (bytes != nullptr) return {bytes, static_cast<std::size_t>(size)};
  if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) throw PythonError();
  PyErr_Clear();
  throw InvalidArgument(name + ": got " + described(value) +
                        ", which holds half a surrogate pair: give text that UTF-8 can hold");
}

std::string Arguments::text(Py_ssize_t i, const std::string& name) const { return text_of(at(i), name); }

std::string Arguments::contents(Py_ssize_t i, const std::string& name) const {
  PyObject* value = at(i);
  if (PyBytes_Check(value)) return bytes_of(value);
  if (!PyUnicode_Check(value)) refuse_type(name, value, "text or bytes");
  return text_of(value, name);
}

std::string Arguments::path(Py_ssize_t i, const std::string& name) const {
  PyObject* value = at(i);
  if (!PyBytes_Check(value)) refuse_type(name, value, "a path");
  std::string path = bytes_of(value);
  if (path.find('\0') != std::string::npos) {
    throw InvalidArgument(name + ": got " + described(value) + ", which holds a byte 0: give a path without it");
  }
  return path;
}

int Arguments::integer(Py_ssize_t i, const std::string& name) const {
  return static_cast<int>(whole_number(at(i), name, INT_MIN, INT_MAX));
}

int Arguments::integer_or(Py_ssize_t i, const std::string& name, int otherwise) const {
  return is_none(i) ? otherwise : integer(i, name);
}

std::uint64_t Arguments::seed(Py_ssize_t i, const std::string& name) const {
  return static_cast<std::uint64_t>(whole_number(at(i), name, 0, LLONG_MAX));
}

double Arguments::number(Py_ssize_t i, const std::string& name) const {
  PyObject* value = at(i);
  if (PyBool_Check(value) || PyNumber_Check(value) == 0) refuse_type(name, value, "a number");
  const double number = PyFloat_AsDouble(value);
  if (number != -1.0 || PyErr_Occurred() == nullptr) return number;
  if (PyErr_ExceptionMatches(PyExc_OverflowError) != 0) {
    PyErr_Clear();
    throw InvalidArgument(name + ": got " + described(value) + ", which is larger than any floating-point number");
  }
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw PythonError();
  PyErr_Clear();
  refuse_type(name, value, "a number");
}

bool Arguments::flag(Py_ssize_t i, const std::string& name) const {
  PyObject* value = at(i);
  if (!PyBool_Check(value)) refuse_type(name, value, "True or False");
  return value == Py_True;
}

std::vector<PyObject*> Arguments::items(PyObject* sequence, const std::string& name) const {
  // A text is a sequence of texts, and never what was meant.
  if (PyUnicode_Check(sequence) || PyBytes_Check(sequence)) refuse_type(name, sequence, "a list");
  PyObject* list = PySequence_List(sequence);
  if (list == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw PythonError();
    PyErr_Clear();
    refuse_type(name, sequence, "a list");
  }
  held_.emplace_back(list);
  std::vector<PyObject*> items;
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) items.push_back(PyList_GetItem(list, i));
  return items;
}

std::vector<std::string> Arguments::texts(Py_ssize_t i, const std::string& name) const {
  std::vector<std::string> texts;
  for (PyObject* item : items(at(i), name)) texts.push_back(text_of(item, name));
  return texts;
}

void* Arguments::pointer(PyObject* object, const std::string& name, const char* capsule, const char* expected) const {
  if (PyCapsule_IsValid(object, capsule) == 0) {
    PyObject* inner = PyObject_GetAttrString(object, "_capsule");
    if (inner == nullptr) {
      PyErr_Clear();
      refuse_type(name, object, expected);
    }
    held_.emplace_back(inner);
    if (PyCapsule_IsValid(inner, capsule) == 0) refuse_type(name, object, expected);
    object = inner;
  }
  return PyCapsule_GetPointer(object, capsule);
}

}  // namespace stagecraft::python

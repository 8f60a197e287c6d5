#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "object.h"
#include "report_text.h"

/// C++ values as Python objects.
namespace stagecraft::python {

/// Bytes that are not UTF-8 become \xNN.
Object to_python(std::string_view text);
Object to_python(bool value);
Object to_python(int value);
Object to_python(double value);
Object to_python(const cli::Json& json);

/// The numbers as bytes in the machine's order, for array.array and numpy.
Object raw_bytes(const std::vector<double>& numbers);

/// A tuple that takes over the objects.
template <typename... Objects>
Object tuple_of(Objects... objects) {
  Object tuple(PyTuple_New(sizeof...(objects)));
  Py_ssize_t i = 0;
  (check(PyTuple_SetItem(tuple.get(), i++, objects.release())), ...);
  return tuple;
}

/// A list of `make(item)` of each item.
template <typename Items, typename Make>
Object list_of(const Items& items, Make&& make) {
  Object list(PyList_New(0));
  for (const auto& item : items) check(PyList_Append(list.get(), Object(make(item)).get()));
  return list;
}

/// A Python value for an error message: its repr, at most 60 bytes, and its type.
std::string described(PyObject* value);

}  // namespace stagecraft::python

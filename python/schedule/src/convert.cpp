#include "convert.h"

#include "stagecraft/core/text.h"

namespace stagecraft::python {
namespace {

Object repr_bytes(PyObject* value) {
  const Object repr(PyObject_Repr(value));
  return Object(PyUnicode_AsEncodedString(repr.get(), "utf-8", "backslashreplace"));
}

std::string type_name(PyObject* value) {
  const Object name(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(value)), "__name__"));
  const char* text = PyUnicode_AsUTF8AndSize(name.get(), nullptr);
  if (text == nullptr) throw PythonError();
  return text;
}

}  // namespace

Object to_python(std::string_view text) {
  return Object(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

Object to_python(bool value) { return Object::borrowed(value ? Py_True : Py_False); }
Object to_python(int value) { return Object(PyLong_FromLong(value)); }
Object to_python(double value) { return Object(PyFloat_FromDouble(value)); }

Object to_python(const cli::Json& json) {
  using Type = cli::Json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return to_python(json.get<bool>());
    case Type::number_integer:
      return Object(PyLong_FromLongLong(json.get<std::int64_t>()));
    case Type::number_unsigned:
      return Object(PyLong_FromUnsignedLongLong(json.get<std::uint64_t>()));
    case Type::number_float:
      return to_python(json.get<double>());
    case Type::string:
      return to_python(std::string_view(json.get_ref<const std::string&>()));
    case Type::array:
      return list_of(json, [](const cli::Json& item) { return to_python(item); });
    case Type::object: {
      Object dict(PyDict_New());
      for (const auto& [key, value] : json.items()) {
        check(PyDict_SetItem(dict.get(), to_python(std::string_view(key)).get(), to_python(value).get()));
      }
      return dict;
    }
    default:
      return Object::none();
  }
}

Object raw_bytes(const std::vector<double>& numbers) {
  return Object(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(numbers.data()),
                                          static_cast<Py_ssize_t>(numbers.size() * sizeof(double))));
}

std::string described(PyObject* value) {
  constexpr std::size_t kMost = 60;
  if (value == Py_None) return "None";
  try {
    const Object repr = repr_bytes(value);
    char* bytes = nullptr;
    Py_ssize_t size = 0;
    check(PyBytes_AsStringAndSize(repr.get(), &bytes, &size));
    return shortened(std::string(bytes, static_cast<std::size_t>(size)), kMost) + " (" + type_name(value) + ")";
  } catch (const PythonError&) {  // its __repr__ raises, or it is an int of too many digits
    PyErr_Clear();
  }
  try {
    return "a value of type " + type_name(value);
  } catch (const PythonError&) {
    PyErr_Clear();
    return "a value";
  }
}

}  // namespace stagecraft::python

#include "objects.h"

#include "stagecraft/core/error.h"

namespace stagecraft::python {
namespace {

// A ValueList is a tuple. Other containers are dicts whose first key no user has.
const std::string kListMark = "\x1flist";
const std::string kTypeMark = "\x1ftype";

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

class PythonObject : public Opaque {
 public:
  explicit PythonObject(py::object object) : object_(std::move(object)) {}
  [[nodiscard]] std::string kind() const override {
    const py::gil_scoped_acquire gil;
    return std::string("a Python object of type '") + Py_TYPE(object_.get().ptr())->tp_name + "'";
  }
  [[nodiscard]] py::object get() const { return py::reinterpret_borrow<py::object>(held()); }

 protected:
  [[nodiscard]] py::handle held() const { return object_.get(); }

 private:
  Owned object_;
};

/// The class of a tuple that has one of its own.
class TupleType : public PythonObject {
 public:
  using PythonObject::PythonObject;
  [[nodiscard]] std::string kind() const override {
    const py::gil_scoped_acquire gil;
    return std::string("a tuple of type '") + reinterpret_cast<PyTypeObject*>(held().ptr())->tp_name + "'";
  }
  [[nodiscard]] bool stands_for(const Opaque& other) const override {
    const auto* type = dynamic_cast<const TupleType*>(&other);
    return type != nullptr && held().is(type->held());
  }
  /// Named tuples take their items one by one; others, such as those of torch.return_types, take one sequence.
  [[nodiscard]] py::object made_of(const py::tuple& items) const {
    const py::object type = get();
    return PyFunction_Check(type.attr("__new__").ptr()) ? type(*items) : type(items);
  }
};

/// Refuses a container inside itself, where the recursion would not end.
class Deeper {
 public:
  Deeper() {
    if (Py_EnterRecursiveCall(" in the inputs or outputs of a stage") != 0) throw py::error_already_set();
  }
  ~Deeper() { Py_LeaveRecursiveCall(); }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
};

bool is_named_tuple(py::handle object) { return PyTuple_Check(object.ptr()) && !PyTuple_CheckExact(object.ptr()); }

bool has_tensor(py::handle object) {
  PyObject* const at = object.ptr();
  if (THPVariable_Check(at)) return true;
  if (PyTuple_Check(at) || PyList_Check(at)) {
    const Deeper deeper;
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(at);
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (has_tensor(PySequence_Fast_GET_ITEM(at, i))) return true;
    }
    return false;
  }
  if (!PyDict_Check(at)) return false;
  const Deeper deeper;
  PyObject* key = nullptr;
  PyObject* item = nullptr;
  for (Py_ssize_t next = 0; PyDict_Next(at, &next, &key, &item) != 0;) {
    if (has_tensor(item)) return true;
  }
  return false;
}

/// Numbers, text and none; false for anything else, and for a number that does not fit.
bool take_scalar(PyObject* object, Value& value) {
  if (object == Py_None) {
    value = {};
  } else if (PyBool_Check(object)) {
    value = object == Py_True;
  } else if (PyFloat_CheckExact(object)) {
    value = PyFloat_AS_DOUBLE(object);
  } else if (PyLong_CheckExact(object)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0) return false;
    value = static_cast<std::int64_t>(number);
  } else if (PyUnicode_CheckExact(object)) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &size);
    if (text == nullptr) {
      PyErr_Clear();  // a lone surrogate: it stays a Python object
      return false;
    }
    value = std::string(text, static_cast<std::size_t>(size));
  } else {
    return false;
  }
  return true;
}

std::string key_text(py::handle key) {
  if (!PyUnicode_Check(key.ptr())) {
    throw InvalidArgument(std::string("a dict with tensors has a key of type '") + Py_TYPE(key.ptr())->tp_name +
                          "': use text as keys");
  }
  return py::cast<std::string>(key);
}

/// `convert` makes values of the items.
template <typename Convert>
ValueList items_of(py::handle sequence, const Convert& convert) {
  const Deeper deeper;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence.ptr());
  ValueList values;
  values.reserve(static_cast<std::size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) values.push_back(convert(PySequence_Fast_GET_ITEM(sequence.ptr(), i)));
  return values;
}

template <typename Convert>
Value container(py::handle object, const Convert& convert) {
  if (is_named_tuple(object)) {
    ValueDict marked;
    marked.emplace_back(kTypeMark, Value(OpaquePtr(std::make_shared<TupleType>(py::type::of(object)))));
    marked.emplace_back(kListMark, items_of(object, convert));
    return marked;
  }
  if (PyTuple_Check(object.ptr())) return items_of(object, convert);
  if (PyList_Check(object.ptr())) {
    ValueDict marked;
    marked.emplace_back(kListMark, items_of(object, convert));
    return marked;
  }
  const Deeper deeper;
  ValueDict values;
  PyObject* key = nullptr;
  PyObject* item = nullptr;
  for (Py_ssize_t next = 0; PyDict_Next(object.ptr(), &next, &key, &item) != 0;) {
    values.emplace_back(key_text(key), convert(item));
  }
  return values;
}

bool is_container(py::handle object) {
  return PyTuple_Check(object.ptr()) || PyList_Check(object.ptr()) || PyDict_Check(object.ptr());
}

struct ToPython {
  py::object operator()(std::monostate) const { return py::none(); }
  py::object operator()(const at::Tensor& tensor) const {
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  }
  py::object operator()(bool flag) const { return py::bool_(flag); }
  py::object operator()(std::int64_t number) const { return py::int_(number); }
  py::object operator()(double number) const { return py::float_(number); }
  py::object operator()(const std::string& text) const { return py::str(text); }
  py::object operator()(const ValueList& list) const { return to_arguments(list); }
  py::object operator()(const ValueDict& dict) const {
    if (dict.size() == 1 && dict[0].first == kListMark) return py::list(to_arguments(dict[0].second.list()));
    if (dict.size() == 2 && dict[0].first == kTypeMark) {
      const auto& type = dynamic_cast<const TupleType&>(*std::get<OpaquePtr>(dict[0].second.held()));
      return type.made_of(to_arguments(dict[1].second.list()));
    }
    return to_keywords(dict);
  }
  py::object operator()(const OpaquePtr& opaque) const { return dynamic_cast<const PythonObject&>(*opaque).get(); }
};

}  // namespace

Owned::Owned(py::object object)
    : held_(object.release().ptr(), [](PyObject* last) {
        if (Py_IsInitialized() == 0 || is_finalizing()) return;  // Python has gone, and takes it along
        const py::gil_scoped_acquire gil;
        Py_XDECREF(last);
      }) {}

Value as_opaque(py::object object) { return Value(OpaquePtr(std::make_shared<PythonObject>(std::move(object)))); }

Value from_input(py::handle object) {
  if (THPVariable_Check(object.ptr())) return THPVariable_Unpack(object.ptr());
  Value scalar;
  if (take_scalar(object.ptr(), scalar)) return scalar;
  if (is_container(object) && has_tensor(object)) {
    return container(object, [](py::handle item) { return from_input(item); });
  }
  return as_opaque(py::reinterpret_borrow<py::object>(object));
}

ValueList from_arguments(py::handle tuple) {
  return items_of(tuple, [](py::handle item) { return from_input(item); });
}

ValueDict from_keywords(py::handle dict) {
  ValueDict values;
  PyObject* key = nullptr;
  PyObject* item = nullptr;
  for (Py_ssize_t next = 0; PyDict_Next(dict.ptr(), &next, &key, &item) != 0;) {
    values.emplace_back(key_text(key), from_input(item));
  }
  return values;
}

namespace {

Value from_output_part(py::handle object, bool is_last, int stage) {
  if (THPVariable_Check(object.ptr())) return THPVariable_Unpack(object.ptr());
  Value scalar;
  if (take_scalar(object.ptr(), scalar)) return scalar;
  if (is_container(object)) {
    return container(object, [&](py::handle item) { return from_output_part(item, is_last, stage); });
  }
  if (is_last) return as_opaque(py::reinterpret_borrow<py::object>(object));
  throw InvalidArgument("stage " + std::to_string(stage) + " returned an object of type '" +
                        Py_TYPE(object.ptr())->tp_name +
                        "': let it return tensors, numbers, text, None, and tuples, lists and dicts of them");
}

}  // namespace

Value from_output(py::handle object, bool is_last, int stage) {
  if (PyList_Check(object.ptr()) && !is_last) {
    return items_of(object, [&](py::handle item) { return from_output_part(item, is_last, stage); });
  }
  return from_output_part(object, is_last, stage);
}

py::object to_python(const Value& value) { return std::visit(ToPython(), value.held()); }

py::tuple to_arguments(const ValueList& values) {
  py::tuple tuple(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), to_python(values[i]).release().ptr());
  }
  return tuple;
}

py::dict to_keywords(const ValueDict& values) {
  py::dict dict;
  for (const auto& [name, value] : values) dict[py::str(name)] = to_python(value);
  return dict;
}

}  // namespace stagecraft::python

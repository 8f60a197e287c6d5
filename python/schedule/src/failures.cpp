#include "failures.h"

#include <new>

#include "check_report.h"
#include "stagecraft/plan/planner.h"

namespace stagecraft::python {
namespace {

using cli::Json;

/// Sets an exception of stagecraft.errors with these attributes.
void set_error(const char* type, const std::string& message, const Json& attributes = Json::object()) {
  try {
    const Object module(PyImport_ImportModule("stagecraft.errors"));
    const Object error_type(PyObject_GetAttrString(module.get(), type));
    const Object error(
        PyObject_CallFunctionObjArgs(error_type.get(), to_python(std::string_view(message)).get(), nullptr));
    for (const auto& [name, value] : attributes.items()) {
      check(PyObject_SetAttrString(error.get(), name.c_str(), to_python(value).get()));
    }
    PyErr_SetObject(error_type.get(), error.get());
  } catch (const PythonError&) {  // the exception set instead says why
  }
}

/// By the most derived types first.
void set_error_of_ours() {
  try {
    throw;
  } catch (const InfeasibleLimit& error) {
    set_error("InfeasibleLimit", error.what(), {{"smallest", error.smallest()}});
  } catch (const InvalidArgument& error) {
    set_error("InvalidArgument", error.what());
  } catch (const ParseError& error) {
    set_error("ParseError", error.what(), {{"row", error.row()}, {"column", error.column()}});
  } catch (const ScheduleError& error) {
    set_error("ScheduleError", error.what(),
              {{"rank", error.rank().value}, {"step", error.step()}, {"action", error.action()}});
  } catch (const FileError& error) {
    set_error("FileError", error.what(), {{"path", error.path()}});
  } catch (const InternalError& error) {
    set_error("InternalError", error.what());
  } catch (const Error& error) {
    set_error("Error", error.what());
  }
}

}  // namespace

void set_failure() {
  try {
    throw;
  } catch (const PythonError&) {
  } catch (const Error&) {
    set_error_of_ours();
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError,
                    "not enough memory: use fewer ranks, stages or microbatches, or a smaller model");
  } catch (const std::exception& error) {
    set_error("InternalError", std::string(error.what()) + ": this is a bug in stagecraft, please report it");
  }
}

void refuse_type(const std::string& name, PyObject* value, const std::string& expected) {
  const Object message = to_python(std::string_view(name + ": got " + described(value) + ", expected " + expected));
  PyErr_SetObject(PyExc_TypeError, message.get());
  throw PythonError();
}

Json refusal_json(const Refusal& refusal) {
  return {{"message", refusal.message},
          {"rank", refusal.rank.value},
          {"step", refusal.step},
          {"action", cli::action_json(refusal.action)},
          {"cycle", cli::cycle_json(refusal.cycle)},
          {"excerpt", refusal.excerpt},
          {"full_text", refusal.full_text()}};
}

void raise_refusal(const Refusal& refusal) {
  Json attributes = refusal_json(refusal);
  attributes.erase("message");
  attributes.erase("full_text");
  attributes["action"] = refusal.action.is_idle() ? "" : to_text(refusal.action);
  set_error("ScheduleError", refusal.full_text(), attributes);
  throw PythonError();
}

}  // namespace stagecraft::python

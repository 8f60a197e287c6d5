// stagecraft._schedule: the schedule half as functions of text, numbers and capsules, under Python's limited API.

#include <cxxabi.h>

#include "functions.h"

namespace stagecraft::python {
namespace {

/// A function of the module: C++ exceptions become Python's.
template <Object (*kFunction)(const Arguments&)>
PyObject* guarded(PyObject*, PyObject* tuple) {
  try {
    return kFunction(Arguments(tuple)).release();
  } catch (const abi::__forced_unwind&) {
    throw;  // Python ends this thread
  } catch (...) {
    set_failure();
    return nullptr;
  }
}

template <Object (*kFunction)(const Arguments&)>
constexpr PyMethodDef method(const char* name) {
  return {name, guarded<kFunction>, METH_VARARGS, nullptr};
}

PyMethodDef methods[] = {
    method<version_text>("version"),
    method<listing>("listing"),
    method<parse_action_text>("parse_action"),
    method<schedule_named>("schedule_named"),
    method<schedule_from_csv>("schedule_from_csv"),
    method<schedule_read>("schedule_read"),
    method<schedule_from_rows>("schedule_from_rows"),
    method<schedule_facts>("schedule_facts"),
    method<schedule_rows>("schedule_rows"),
    method<schedule_csv>("schedule_csv"),
    method<schedule_equal>("schedule_equal"),
    method<schedule_lowered>("schedule_lowered"),
    method<schedule_picture>("schedule_picture"),
    method<verified>("verify"),
    method<require_valid_schedule>("require_valid"),
    method<checked>("check"),
    method<step_count>("count_steps"),
    method<peak_live>("peak_live_activations"),
    method<write_file>("write_file"),
    method<read_file>("read_file"),
    method<costs_parse>("costs_parse"),
    method<costs_example>("costs_example"),
    method<costs_text>("costs_json"),
    method<costs_changed>("costs_changed"),
    method<costs_slower_rank>("costs_slower_rank"),
    method<costs_slower_link>("costs_slower_link"),
    method<costs_memory_text>("costs_memory_text"),
    method<simulated>("simulate"),
    method<simulation_facts>("simulation_facts"),
    method<simulation_text>("simulation_text"),
    method<simulation_times>("simulation_times"),
    method<simulation_memory>("simulation_memory"),
    method<simulation_picture>("simulation_picture"),
    method<compared>("compare"),
    method<planned>("plan"),
    method<smallest_limit>("smallest_memory_limit"),
    method<lower_bound_of_span>("span_lower_bound"),
    method<recording_parse>("recording_parse"),
    method<recording_facts>("recording_facts"),
    method<recording_spans>("recording_spans"),
    method<recording_summary>("recording_summary"),
    method<recording_picture>("recording_picture"),
    method<profiled>("profile"),
    method<profile_facts>("profile_facts"),
    method<period_predicted>("predicted_period"),
    method<model_read>("model_read"),
    method<model_facts>("model_facts"),
    method<model_text>("model_text"),
    method<model_split>("model_split"),
    method<split_facts>("split_facts"),
    method<split_costs>("split_costs"),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot slots[] = {{0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "stagecraft._schedule",
                          "The C++ side of stagecraft. Use the functions and classes of the package instead.",
                          0,
                          methods,
                          slots,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace stagecraft::python

PyMODINIT_FUNC PyInit__schedule() { return PyModuleDef_Init(&stagecraft::python::definition); }

#include "stage.h"

#include <optional>

#include "errors.h"
#include "stagecraft/core/error.h"
#include "stagecraft/stage/random.h"

namespace stagecraft::python {
namespace {

constexpr const char* kDrawsInBackward =
    "a module draws random numbers in its backward, as torch.utils.checkpoint does when it computes a part again; with "
    "a seed or a recompute of the pipeline, they would not be those of its forward: leave that part to the pipeline's "
    "recompute, or leave out both";

NamedTensors named_tensors(const py::handle& pairs) {
  NamedTensors tensors;
  for (const py::handle pair : pairs) {
    tensors.emplace_back(py::cast<std::string>(pair[py::int_(0)]), py::cast<at::Tensor>(pair[py::int_(1)]));
  }
  return tensors;
}

std::vector<TensorSpec> specs_from(const py::handle& list) {
  std::vector<TensorSpec> specs;
  for (const py::handle one : list) {
    specs.push_back(
        {py::cast<std::vector<std::int64_t>>(one[py::int_(0)]), py::cast<at::ScalarType>(one[py::int_(1)])});
  }
  return specs;
}

py::object called(py::handle function, const StageCall& call) {
  const py::tuple arguments = to_arguments(call.arguments);
  PyObject* const result = call.keywords.empty()
                               ? PyObject_Call(function.ptr(), arguments.ptr(), nullptr)
                               : PyObject_Call(function.ptr(), arguments.ptr(), to_keywords(call.keywords).ptr());
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

/// `find` returns what is called. It is looked up anew each time, because a user may replace a stage's module.
template <typename Find>
StageForward forward_of(const Find& find, const std::shared_ptr<StageSettings>& settings, int index) {
  return [find, settings, index](const StageCall& call) {
    std::optional<GlobalRandom> random;
    if (settings->global_random) random.emplace();
    return in_python([&] { return from_output(called(find(), call), settings->is_last, index); });
  };
}

std::function<std::vector<StageLayer>()> layers_from(const py::object& list,
                                                     const std::shared_ptr<StageSettings>& settings, int index,
                                                     py::list& keep) {
  if (list.is_none()) return {};
  std::vector<StageLayer> layers;
  for (const py::handle one : list) {
    const Borrowed layer(py::reinterpret_borrow<py::object>(one[py::int_(1)]), keep);
    layers.push_back(
        {py::cast<std::string>(one[py::int_(0)]), forward_of([layer] { return layer.get(); }, settings, index)});
  }
  return [layers] { return layers; };
}

std::function<void()> as_function(py::object function) {
  return [function = Owned(std::move(function))] { in_python([&] { function.get()(); }); };
}

/// What the Memory of a rank keeps for a ticket.
struct KeptInPython {
  Borrowed memory;
  Owned ticket;

  template <typename Result, typename... Arguments>
  Result call(const char* method, const Arguments&... arguments) const {
    return in_python([&] { return memory.get().attr(method)(ticket.get(), arguments...).template cast<Result>(); });
  }
};

std::vector<std::uintptr_t> as_numbers(const std::vector<const void*>& addresses) {
  std::vector<std::uintptr_t> numbers;
  for (const void* one : addresses) numbers.push_back(reinterpret_cast<std::uintptr_t>(one));
  return numbers;
}

KeptSince compared(const KeptInPython& before, const UsedMemory& used) {
  using Answer = std::tuple<py::object, bool, bool, bool, bool>;
  return in_python([&] {
    auto [ticket, carries, puts_again, has_read, has_empty] =
        py::cast<Answer>(before.call<py::object>("compare", as_numbers(used.read), as_numbers(used.made)));
    const KeptInPython kept{before.memory, Owned(std::move(ticket))};
    KeptSince since{.carries = carries};
    if (puts_again) since.put_again = [kept] { kept.call<void>("put_again"); };
    if (has_read) {
      since.has_replaced = [kept] { return kept.call<bool>("has_replaced"); };
      since.has_made_again = [kept] { return kept.call<bool>("has_made_again"); };
    }
    if (has_empty) since.has_added = [kept] { return kept.call<bool>("has_added"); };
    if (has_empty || puts_again) since.begins_otherwise = [kept] { return kept.call<bool>("begins_otherwise"); };
    return since;
  });
}

Remembered remembered_by(const Borrowed& memory) {
  auto [ticket, tensors] = in_python([&] {
    auto both = py::cast<std::pair<py::object, std::vector<at::Tensor>>>(memory.get().attr("remember")());
    return std::pair(Owned(std::move(both.first)), std::move(both.second));
  });
  const KeptInPython kept{memory, std::move(ticket)};
  const auto give_back = [kept](const UsedMemory& used) {
    std::vector<const void*> all = used.read;
    all.insert(all.end(), used.made.begin(), used.made.end());
    kept.call<void>("give_back", as_numbers(all));
  };
  return {.put_back = give_back, .tensors = std::move(tensors), .compare = [kept](const UsedMemory& used) {
            return compared(kept, used);
          }};
}

}  // namespace

Recompute recompute_from(const py::object& object, py::list& keep) {
  if (object.is_none()) return {};
  const auto kind = py::cast<std::string>(object[py::int_(0)]);
  if (kind == "stage") return Recompute::stage();
  if (kind == "every") return Recompute::every(py::cast<std::int64_t>(object[py::int_(1)]));
  const Borrowed chosen(object[py::int_(1)], keep);
  return Recompute::where(
      [chosen](const std::string& name) { return in_python([&] { return py::cast<bool>(chosen.get()(name)); }); });
}

PythonStage make_stage(const py::dict& spec, bool has_seed, const Recompute& recompute, py::list& keep) {
  auto settings = std::make_shared<StageSettings>();
  const int index = py::cast<int>(spec["index"]);
  StageOptions options;
  options.full_backward = py::cast<bool>(spec["full_backward"]);
  options.copy_inputs = py::cast<bool>(spec["copy_inputs"]);
  options.inputs = specs_from(spec["inputs"]);
  options.outputs = specs_from(spec["outputs"]);
  options.not_saved = py::cast<std::vector<std::string>>(spec["not_saved"]);
  options.other_names = py::cast<std::vector<std::pair<std::string, std::string>>>(spec["other_names"]);
  options.origin = py::cast<std::string>(spec["origin"]);
  if (!spec["recompute"].is_none()) options.recompute = recompute_from(spec["recompute"], keep);
  // What is computed again draws the same numbers from streams only.
  settings->global_random = !has_seed && !options.recompute.value_or(recompute).is_any();
  if (!settings->global_random) options.no_random_in_backward = kDrawsInBackward;
  options.layers = layers_from(spec["layers"], settings, index, keep);
  options.mode = [mode = Borrowed(spec["mode"], keep)] {
    return in_python([&] { return py::cast<std::uint64_t>(mode.get()()); });
  };
  if (!spec["memory"].is_none()) {
    options.remember = [memory = Borrowed(spec["memory"], keep)] { return remembered_by(memory); };
  }
  if (!spec["auxiliary_loss"].is_none()) {
    options.auxiliary_loss = [loss = Borrowed(spec["auxiliary_loss"], keep)](const Value& output) {
      return in_python([&] { return py::cast<at::Tensor>(loss.get()(to_python(output))); });
    };
  }
  if (!spec["deferred_weights"].is_none()) {
    options.deferred_weights = [defer = Borrowed(spec["deferred_weights"], keep)]() -> std::function<void()> {
      return in_python([&] { return as_function(defer.get()()); });
    };
  }

  const Borrowed owner(spec["owner"], keep);
  const Borrowed attribute(spec["attribute"], keep);
  const auto module = [owner, attribute] { return py::getattr(owner.get(), attribute.get()); };
  Stage::EnterEvaluation enter_evaluation;
  if (!spec["enter_evaluation"].is_none()) {
    enter_evaluation = [enter = Borrowed(spec["enter_evaluation"], keep)]() -> std::function<void()> {
      return in_python([&] { return as_function(enter.get()()); });
    };
  }
  return {Stage(index, forward_of(module, settings, index), named_tensors(spec["parameters"]),
                named_tensors(spec["buffers"]), std::move(enter_evaluation), std::move(options)),
          settings};
}

}  // namespace stagecraft::python

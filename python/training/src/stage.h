#pragma once

#include <memory>

#include "objects.h"
#include "stagecraft/stage/recompute.h"
#include "stagecraft/stage/stage.h"

/// torch.nn.Modules as stages.
namespace stagecraft::python {

struct StageSettings {
  bool is_last = false;        ///< The last stage may return anything that its loss function takes. Set later.
  bool global_random = false;  ///< Random operations draw from torch's generators, not from streams of the pipeline.
};

struct PythonStage {
  Stage stage;
  std::shared_ptr<StageSettings> settings;
};

/// A stage from a dict; stagecraft/torch/_stage.py has its entries. `has_seed`: the pipeline has a seed; `recompute` is
/// the pipeline's. What Python objects it needs go into `keep`.
PythonStage make_stage(const py::dict& spec, bool has_seed, const Recompute& recompute, py::list& keep);

/// None, ("stage",), ("every", layers) or ("where", function).
Recompute recompute_from(const py::object& object, py::list& keep);

}  // namespace stagecraft::python

// stagecraft.torch._runtime: the C++ runtime for Python. The Python files beside it are its only users.

#include <torch/version.h>

#include "errors.h"
#include "options.h"
#include "pipeline.h"
#include "stagecraft/core/identity.h"
#include "stagecraft/runtime/schedule_choice.h"
#include "stagecraft/schedule/generator.h"
#include "worlds.h"

PYBIND11_MODULE(_runtime, module) {
  using namespace stagecraft;
  module.attr("torch_version") = TORCH_VERSION;
  module.attr("version") = std::string(version());
  python::register_errors();
  python::bind_worlds(module);
  python::bind_pipeline(module);
  // The rank of each stage, for a schedule given as in the options of a pipeline.
  module.def("placement", [](const pybind11::tuple& schedule, int ranks, int stages_per_rank) {
    const Placement placement = python::choice_from(schedule).placement(ranks, stages_per_rank);
    std::vector<int> ranks_of_stages;
    for (const RankId rank : placement.ranks_of_stages()) {
      ranks_of_stages.push_back(rank.value);
    }
    return ranks_of_stages;
  });
  // (name, fewest stages per rank, most, usual) of every known schedule.
  module.def("known_schedules", [] {
    pybind11::list known;
    for (const Generator* one : generators()) {
      known.append(pybind11::make_tuple(std::string(one->name), one->min_stages_per_rank, one->max_stages_per_rank,
                                        one->default_stages_per_rank));
    }
    return known;
  });
}

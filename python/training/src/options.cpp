#include "options.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include "errors.h"
#include "stage.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/csv.h"

namespace stagecraft::python {
namespace {

/// (dimension or None, sizes)
Split split_from(const py::handle& pair) {
  Split split;
  const py::object dimension = pair[py::int_(0)];
  split.dimension = dimension.is_none() ? std::nullopt : std::optional(py::cast<std::int64_t>(dimension));
  split.sizes = py::cast<std::vector<std::int64_t>>(pair[py::int_(1)]);
  return split;
}

std::optional<at::ScalarType> type_from(const py::handle& dtype) {
  if (dtype.is_none()) return std::nullopt;
  return py::cast<at::ScalarType>(dtype);
}

Precision precision_from(const py::dict& given) {
  Precision precision;
  precision.compute = type_from(given["compute"]);
  precision.keep = py::cast<std::vector<std::string>>(given["keep"]);
  precision.parameters = type_from(given["parameters"]);
  precision.autocast = type_from(given["autocast"]);
  precision.reduce = type_from(given["reduce"]);
  if (!given["scaling"].is_none()) {
    const py::dict scaling = given["scaling"];
    precision.scaling = LossScaling{py::cast<double>(scaling["initial"]), py::cast<double>(scaling["growth"]),
                                    py::cast<double>(scaling["backoff"]), py::cast<int>(scaling["growth_interval"])};
  }
  return precision;
}

AutoOptions automatic_from(const py::dict& given) {
  return {py::cast<int>(given["profile_steps"]), py::cast<double>(given["time_budget"]),
          py::cast<double>(given["memory_limit"]), py::cast<std::uint64_t>(given["seed"])};
}

LossFunction loss_from(const py::object& given, py::list& keep) {
  if (given.is_none()) return {};
  return LossFunction::Full(
      [loss = Borrowed(given, keep)](const Value& output, const Value& target, const ValueDict& keywords) {
        return in_python([&] {
          const py::object result = loss.get()(to_python(output), to_python(target), **to_keywords(keywords));
          if (THPVariable_Check(result.ptr())) return at::Tensor(THPVariable_Unpack(result.ptr()));
          throw InvalidArgument(std::string("the loss function returned an object of type '") +
                                Py_TYPE(result.ptr())->tp_name + "': return a tensor with one number");
        });
      });
}

Reducer reducer_from(const py::object& given, py::list& keep) {
  if (given.is_none()) return concatenate();
  return [merge = Borrowed(given, keep)](const std::vector<Value>& parts) {
    return in_python([&] {
      py::list outputs;
      for (const Value& part : parts) outputs.append(to_python(part));
      return as_opaque(merge.get()(outputs));
    });
  };
}

template <typename Choice>
Choice one_of(const py::handle& given, const char* option,
              std::initializer_list<std::pair<const char*, Choice>> choices) {
  const auto name = py::cast<std::string>(given);
  std::string known;
  for (const auto& [own, choice] : choices) {
    if (name == own) return choice;
    known += (known.empty() ? "'" : ", '") + std::string(own) + "'";
  }
  throw InvalidArgument(std::string(option) + " is one of " + known + ", got '" + name + "'");
}

}  // namespace

Schedule schedule_from(const std::string& csv, const std::string& name) {
  return Schedule::from_rows(parse_csv(csv), name);
}

py::list rows_of(const Schedule& schedule) {
  py::list rows;
  for (const Row& row : schedule.rows) {
    py::list cells;
    for (const Action& action : row) cells.append(action.is_idle() ? std::string() : to_text(action));
    rows.append(cells);
  }
  return rows;
}

ScheduleChoice choice_from(const py::handle& given) {
  const auto kind = py::cast<std::string>(given[py::int_(0)]);
  if (kind == "name") return py::cast<std::string>(given[py::int_(1)]);
  return schedule_from(py::cast<std::string>(given[py::int_(1)]), py::cast<std::string>(given[py::int_(2)]));
}

PipelineOptions options_from(const py::dict& given, py::list& keep) {
  PipelineOptions options;
  options.schedule = choice_from(given["schedule"]);
  options.stages_per_rank = py::cast<int>(given["stages_per_rank"]);
  options.microbatches = py::cast<int>(given["microbatches"]);
  options.loss = loss_from(given["loss"], keep);
  options.loss_scale =
      one_of<LossScale>(given["loss_scale"], "loss_scale", {{"mean", LossScale::kMean}, {"sum", LossScale::kSum}});
  if (!given["loss_weight"].is_none()) {
    options.loss_weight = [weigh = Borrowed(given["loss_weight"], keep)](const Value& target) {
      return in_python([&] { return py::cast<double>(py::float_(weigh.get()(to_python(target)))); });
    };
  }
  for (const py::handle edge : given["edges"]) {
    options.edges.push_back({StageId(py::cast<int>(edge[py::int_(0)])), py::cast<int>(edge[py::int_(1)]),
                             StageId(py::cast<int>(edge[py::int_(2)])), py::cast<int>(edge[py::int_(3)]),
                             py::cast<bool>(edge[py::int_(4)])});
  }
  for (const py::handle tie : given["ties"]) {
    Tie& own = options.ties.emplace_back();
    own.parameter = py::cast<std::string>(tie[py::int_(0)]);
    for (const py::handle stage : tie[py::int_(1)]) own.stages.emplace_back(py::cast<int>(stage));
  }
  for (const py::handle split : given["argument_splits"]) options.argument_splits.push_back(split_from(split));
  for (const auto& [name, split] : py::cast<py::dict>(given["keyword_splits"])) {
    options.keyword_splits.emplace(py::cast<std::string>(name), split_from(split));
  }
  options.target_split = split_from(given["target_split"]);
  options.merge_outputs = reducer_from(given["merge_outputs"], keep);
  options.broadcast_loss = py::cast<bool>(given["broadcast_loss"]);
  if (!given["seed"].is_none()) options.seed = py::cast<std::uint64_t>(given["seed"]);
  if (!given["passes"].is_none()) options.passes = py::cast<std::string>(given["passes"]);
  options.bucket_bytes = py::cast<std::int64_t>(given["bucket_bytes"]);
  options.shard = one_of<Shard>(given["shard"], "shard",
                                {{"none", Shard::kNone},
                                 {"optimizer", Shard::kOptimizer},
                                 {"gradients", Shard::kGradients},
                                 {"parameters", Shard::kParameters}});
  options.freeze = py::cast<std::vector<std::string>>(given["freeze"]);
  options.precision = precision_from(given["precision"]);
  options.accumulate = py::cast<int>(given["accumulate"]);
  options.recompute = recompute_from(given["recompute"], keep);
  options.graph = py::isinstance<py::str>(given["graph"]) ? GraphChoice(py::cast<std::string>(given["graph"]).c_str())
                                                          : GraphChoice(py::cast<bool>(given["graph"]));
  options.lanes = py::cast<int>(given["lanes"]);
  options.automatic = automatic_from(given["automatic"]);
  return options;
}

}  // namespace stagecraft::python

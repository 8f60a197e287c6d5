// Costs, read, written and changed.

#include "cost_changes.h"
#include "functions.h"
#include "stagecraft/sim/what_if.h"

namespace stagecraft::python {

const Costs& stage_costs(const CostFile& file) {
  if (file.layers.empty()) return file.costs;
  throw InvalidArgument(
      "layers: costs by stage are needed here: plan() cuts layers into stages and returns their costs");
}

Object costs_parse(const Arguments& args) {
  const std::string text = args.contents(0, "text");
  return wrapped(without_gil([&] { return parse_cost_file(text); }));
}

Object costs_example(const Arguments& args) {
  return to_python(std::string_view(args.flag(0, "in_bytes") ? example_costs_in_bytes() : example_costs()));
}

Object costs_text(const Arguments& args) {
  return to_python(std::string_view(cost_file_to_json(args.value<CostFile>(0, "costs"))));
}

Object costs_changed(const Arguments& args) {
  CostFile file = args.value<CostFile>(0, "costs");
  cli::CostChanges changes;
  if (!args.is_none(1)) {
    changes.replicas = args.integer(1, "replicas");
    if (changes.replicas < 1) (void)with_replicas(file.costs, changes.replicas, file.costs.shard);  // throws
  }
  if (!args.is_none(2)) changes.shard = args.text(2, "shard");
  if (!args.is_none(3)) changes.recompute = args.flag(3, "recompute") ? "all" : "none";
  cli::apply(changes, file);
  return wrapped(std::move(file));
}

Object costs_slower_rank(const Arguments& args) {
  const Costs& costs = stage_costs(args.value<CostFile>(0, "costs"));
  const RankId rank(args.integer(2, "rank"));
  return wrapped(CostFile{with_slower_rank(costs, args.integer(1, "ranks"), rank, args.number(3, "factor")), {}});
}

Object costs_slower_link(const Arguments& args) {
  const Costs& costs = stage_costs(args.value<CostFile>(0, "costs"));
  const RankId a(args.integer(2, "a"));
  const RankId b(args.integer(3, "b"));
  return wrapped(CostFile{with_slower_link(costs, args.integer(1, "ranks"), a, b, args.number(4, "factor")), {}});
}

Object costs_memory_text(const Arguments& args) {
  const auto& file = args.value<CostFile>(0, "costs");
  return to_python(std::string_view(memory_text(file.costs, args.number(1, "memory"))));
}

}  // namespace stagecraft::python

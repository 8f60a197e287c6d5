// Making schedules, looking into them, and lowering them.

#include "functions.h"
#include "list_report.h"
#include "stagecraft/core/identity.h"
#include "stagecraft/core/text.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft::python {
namespace {

Object action_or_none(const Action& action) {
  return action.is_idle() ? Object::none() : to_python(std::string_view(to_text(action)));
}

/// (kind, stage, microbatch or None).
Object plain_action(const Action& action) {
  return tuple_of(to_python(kind_text(action.kind())), to_python(action.stage().value),
                  has_microbatch(action.kind()) ? to_python(action.microbatch().value) : Object::none());
}

Row row_of(const Arguments& args, PyObject* cells, std::size_t rank) {
  Row row;
  for (PyObject* cell : args.items(cells, "rows[" + std::to_string(rank) + "]")) {
    const std::string name = "rows[" + std::to_string(rank) + "][" + std::to_string(row.size()) + "]";
    if (cell == Py_None) {
      row.push_back(Action::idle());
      continue;
    }
    const std::string text = text_of(cell, name);
    const auto parsed = parse_action(text);
    if (const auto* error = std::get_if<ActionTextError>(&parsed)) {
      throw InvalidArgument(name + ": " + in_quotes(text) + " is not an action: " + std::string(error->rule));
    }
    row.push_back(std::get<Action>(parsed));
  }
  return row;
}

}  // namespace

Object version_text(const Arguments&) { return to_python(version()); }

Object listing(const Arguments&) { return to_python(cli::list_json()); }

/// (kind, stage, microbatch, None), or for an overlap ("OVERLAP_F_B", first, second); None for an idle slot.
Object parse_action_text(const Arguments& args) {
  const Action action = to_action(args.text(0, "text"));
  if (action.is_idle()) return Object::none();
  if (!action.is_overlap()) return plain_action(action);
  return tuple_of(to_python(kind_text(action.kind())), plain_action(action.first()), plain_action(action.second()));
}

Object schedule_named(const Arguments& args) {
  const std::string name = args.text(0, "name");
  Shape shape;
  shape.ranks = args.integer(1, "ranks");
  shape.microbatches = args.integer(2, "microbatches");
  shape.stages_per_rank = args.integer_or(3, "stages_per_rank", 0);
  shape.memory_limit = args.integer_or(4, "memory_limit", 0);
  return wrapped(without_gil([&] { return make_schedule(name, shape); }));
}

Object schedule_from_csv(const Arguments& args) {
  const std::string text = args.contents(0, "text");
  const std::string name = args.text(1, "name");
  return wrapped(without_gil([&] { return Schedule::from_rows(parse_csv(text), name); }));
}

Object schedule_from_rows(const Arguments& args) {
  const std::string name = args.text(1, "name");
  std::vector<Row> rows;
  for (PyObject* cells : args.items(args.at(0), "rows")) rows.push_back(row_of(args, cells, rows.size()));
  return wrapped(Schedule::from_rows(std::move(rows), name));
}

Object schedule_facts(const Arguments& args) {
  const auto& schedule = args.value<Schedule>(0, "schedule");
  cli::Json json = {{"name", schedule.name},
                    {"ranks", schedule.ranks()},
                    {"stages", schedule.stages()},
                    {"microbatches", schedule.microbatches},
                    {"placement_style", schedule.placement.style()},
                    {"is_lowered", schedule.is_lowered()},
                    {"trains", schedule.trains()},
                    {"communicates", schedule.communicates()},
                    {"actions", schedule.actions()},
                    {"slots", schedule.slots()},
                    {"idle_slots", schedule.idle_slots()},
                    {"placement", cli::Json::array()}};
  for (const RankId rank : schedule.placement.ranks_of_stages()) json["placement"].push_back(rank.value);
  return to_python(json);
}

Object schedule_rows(const Arguments& args) {
  const auto& schedule = args.value<Schedule>(0, "schedule");
  return list_of(schedule.rows, [](const Row& row) { return list_of(row, action_or_none); });
}

Object schedule_csv(const Arguments& args) {
  const auto& schedule = args.value<Schedule>(0, "schedule");
  return to_python(std::string_view(without_gil([&] { return to_csv(schedule); })));
}

Object schedule_equal(const Arguments& args) {
  return to_python(args.value<Schedule>(0, "schedule") == args.value<Schedule>(1, "schedule"));
}

Object schedule_lowered(const Arguments& args) {
  const auto& schedule = args.value<Schedule>(0, "schedule");
  const std::string passes = args.text(1, "passes");
  return wrapped(without_gil([&] {
    Schedule copy = schedule;
    run_passes(copy, passes);
    return copy;
  }));
}

}  // namespace stagecraft::python

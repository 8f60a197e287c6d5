// Whether a schedule can run, and what that costs in steps.

#include <sstream>

#include "check_report.h"
#include "functions.h"
#include "stagecraft/core/text.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/sim/step_simulator.h"

namespace stagecraft::python {
namespace {

CommModel comm_model(const std::string& name) {
  for (const CommModel model : kCommModels) {
    if (model_name(model) == name) return model;
  }
  throw InvalidArgument("model: got " + in_quotes(name) + ", expected tagged, in_order or rendezvous");
}

cli::Json refusal_or_null(const Refusal* refusal) { return refusal == nullptr ? cli::Json() : refusal_json(*refusal); }

}  // namespace

Object verified(const Arguments& args) {
  const auto& schedule = args.value<Schedule>(0, "schedule");
  const Verdict verdict = without_gil([&] { return verify(schedule); });
  cli::Json json = {{"lowered", verdict.lowered},
                    {"fault", refusal_or_null(verdict.fault ? &*verdict.fault : nullptr)},
                    {"by_model", cli::Json::object()}};
  for (const CommModel model : kCommModels) {
    const auto& own = verdict.by_model[static_cast<std::size_t>(model)];
    json["by_model"][std::string(model_name(model))] = refusal_or_null(own ? &*own : nullptr);
  }
  return to_python(json);
}

Object require_valid_schedule(const Arguments& args) {
  const auto& schedule = args.value<Schedule>(0, "schedule");
  const CommModel model = comm_model(args.text(1, "model"));
  const Verdict verdict = without_gil([&] { return verify(schedule); });
  if (const Refusal* refusal = verdict.refusal(model)) raise_refusal(*refusal);
  return Object::none();
}

/// (report as of the command `check`, its text).
Object checked(const Arguments& args) {
  const auto& schedule = args.value<Schedule>(0, "schedule");
  std::vector<CommModel> models;
  for (const std::string& name : args.texts(1, "models")) models.push_back(comm_model(name));
  std::ostringstream text;
  const cli::CheckReport report = without_gil([&] {
    cli::CheckReport own = cli::examine(schedule.name, schedule.rows, models);
    cli::write_report(text, own);
    return own;
  });
  return tuple_of(to_python(cli::to_json(report)), to_python(std::string_view(text.str())));
}

Object step_count(const Arguments& args) {
  const auto& schedule = args.value<Schedule>(0, "schedule");
  return to_python(without_gil([&] { return count_steps(schedule); }));
}

Object peak_live(const Arguments& args) {
  const auto& schedule = args.value<Schedule>(0, "schedule");
  return to_python(cli::Json(without_gil([&] { return peak_live_activations(schedule); })));
}

}  // namespace stagecraft::python

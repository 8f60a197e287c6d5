#include "check_report.h"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "report_text.h"
#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/sim/simulator.h"
#include "stagecraft/sim/step_simulator.h"

namespace stagecraft::cli {
namespace {

/// A schedule with only its rows set, which is enough for counting.
Schedule uncharted(std::vector<Row> rows) {
  Schedule schedule;
  schedule.rows = std::move(rows);
  return schedule;
}

Refusal to_refusal(const ScheduleError& error) {
  Refusal refusal;
  refusal.message = error.what();
  refusal.rank = error.rank();
  refusal.step = error.step();
  if (!error.action().empty()) refusal.action = to_action(error.action());
  return refusal;
}

void measure(CheckReport& report, const Schedule& schedule) {
  if (report.judgement.verdict.fault) return;
  try {
    report.steps = count_steps(schedule);
  } catch (const ScheduleError&) {  // a deadlock: the refusals say why
  }
  report.peak_live = peak_live_activations(schedule);
}

Json refusal_json(const Refusal* refusal) {
  Json json = {{"ok", refusal == nullptr}, {"message", nullptr}, {"rank", nullptr},
               {"step", nullptr},          {"action", nullptr},  {"cycle", Json::array()}};
  if (refusal == nullptr) return json;
  json["message"] = printable(refusal->message);
  json["action"] = action_json(refusal->action);
  if (refusal->step >= 0 || !refusal->action.is_idle()) json["rank"] = refusal->rank.value;
  if (refusal->step >= 0) json["step"] = refusal->step;
  json["cycle"] = cycle_json(refusal->cycle);
  return json;
}

}  // namespace

Json action_json(const Action& action) { return action.is_idle() ? Json() : Json(to_text(action)); }

Json cycle_json(const std::vector<Waiting>& cycle) {
  Json json = Json::array();
  for (const Waiting& link : cycle) {
    json.push_back({{"rank", link.rank.value},
                    {"step", link.step},
                    {"action", action_json(link.action)},
                    {"on_rank", link.on_rank.value},
                    {"on_step", link.on_step},
                    {"on_action", action_json(link.on_action)}});
  }
  return json;
}

const Refusal* Judgement::refusal(std::span<const CommModel> models) const {
  for (const CommModel model : models) {
    if (const Refusal* found = verdict.refusal(model)) return found;
  }
  return nullptr;
}

Failure Judgement::failure(const std::string& subject, const Refusal& refusal) const {
  return refused(of_lowered_copy ? fmt::format("{}, lowered by send_recv", subject) : subject, refusal);
}

Judgement judge(const Schedule& schedule) {
  Judgement judgement{.verdict = verify(schedule)};
  if (judgement.verdict.lowered || judgement.verdict.fault) return judgement;
  Schedule copy = schedule;
  send_recv(copy);
  judgement.verdict = verify(copy);
  judgement.of_lowered_copy = true;
  return judgement;
}

std::string_view judged_form(const Judgement& judgement) {
  return judgement.of_lowered_copy ? "after send_recv" : "as it stands";
}

double CheckReport::idle_percent() const {
  return rank_steps() == 0 ? 0.0 : 100.0 * static_cast<double>(idle_rank_steps()) / static_cast<double>(rank_steps());
}

CheckReport examine(std::string file, std::vector<Row> rows, std::vector<CommModel> models) {
  CheckReport report;
  report.file = std::move(file);
  report.models = std::move(models);
  Schedule counted = uncharted(std::move(rows));
  report.ranks = counted.ranks();
  report.lowered = counted.is_lowered();
  report.actions = counted.actions();
  report.idle_slots = counted.idle_slots();
  try {
    const Schedule schedule = Schedule::from_rows(std::move(counted.rows), report.file);
    report.stages = schedule.stages();
    report.microbatches = schedule.microbatches;
    report.placement = schedule.placement.style();
    report.judgement = judge(schedule);
    measure(report, schedule);
  } catch (const ScheduleError& error) {
    report.judgement.verdict.fault = to_refusal(error);
  }
  return report;
}

void write_report(std::ostream& out, const CheckReport& report) {
  const auto number = [](const std::optional<int>& n) { return n ? std::to_string(*n) : "unknown"; };
  write_line(out, "file", printable(report.file));
  write_line(out, "kind", report.lowered ? "lowered" : "compute-only");
  write_line(out, "ranks", std::to_string(report.ranks));
  write_line(out, "stages", number(report.stages));
  write_line(out, "placement", report.placement.empty() ? "unknown" : report.placement);
  write_line(out, "microbatches", number(report.microbatches));
  write_line(out, "actions", std::to_string(report.actions));
  write_line(out, "idle slots", fmt::format("{} in the file", report.idle_slots));
  write_line(out, "steps", number(report.steps));
  write_line(out, "idle rank-steps",
             report.steps ? fmt::format("{} of {} ({:.1f}%)", report.idle_rank_steps(), report.rank_steps(),
                                        report.idle_percent())
                          : "unknown");
  write_line(out, "peak live",
             report.peak_live.empty() ? "unknown"
                                      : fmt::format("{} activations (per rank: {})",
                                                    *std::max_element(report.peak_live.begin(), report.peak_live.end()),
                                                    fmt::join(report.peak_live, " ")));
  for (const CommModel model : report.models) {
    const Refusal* refusal = report.judgement.verdict.refusal(model);
    write_line(out, model_name(model),
               refusal == nullptr ? fmt::format("safe, {}", judged_form(report.judgement))
                                  : fmt::format("refused: {}", printable(refusal->message)));
  }
}

Json to_json(const CheckReport& report) {
  Json json;
  json["file"] = printable(report.file);
  json["ok"] = report.ok();
  json["lowered"] = report.lowered;
  json["verified_form"] = judged_form(report.judgement);
  json["ranks"] = report.ranks;
  json["stages"] = or_null(report.stages);
  json["placement"] = report.placement.empty() ? Json() : Json(report.placement);
  json["microbatches"] = or_null(report.microbatches);
  json["actions"] = report.actions;
  json["idle_slots"] = report.idle_slots;
  json["steps"] = or_null(report.steps);
  json["idle_rank_steps"] = report.steps ? Json(report.idle_rank_steps()) : Json();
  json["idle_percent"] = report.steps ? Json(report.idle_percent()) : Json();
  Json peak;
  if (!report.peak_live.empty()) {
    peak = {{"max", *std::max_element(report.peak_live.begin(), report.peak_live.end())},
            {"per_rank", report.peak_live}};
  }
  json["peak_live_activations"] = peak;
  for (const CommModel model : report.models) {
    json["models"][std::string(model_name(model))] = refusal_json(report.judgement.verdict.refusal(model));
  }
  return json;
}

}  // namespace stagecraft::cli

// A recorded run beside its plan: the recorded order, simulated with given costs or with those of the recording itself.

#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>

#include "calls.h"
#include "picture.h"
#include "profile_report.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/sim/profile.h"
#include "stagecraft/view/timeline.h"

namespace stagecraft::page {
namespace {

/// The step whose time is the median, so that the picture is of an ordinary one; warm-up steps do not count.
std::size_t ordinary_step(const Recording& recording) {
  const std::size_t skipped = recording.steps.size() > 1 ? 1 : 0;
  std::vector<std::pair<double, std::size_t>> times;
  for (std::size_t i = skipped; i < recording.steps.size(); ++i) {
    times.emplace_back(summarize(recording.steps[i]).seconds, i);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2].second;
}

struct Loss {
  int count = 0;
  double measured = 0;
  double planned = 0;
};

/// By stage and kind: the time that its actions took and were planned to take in this step. Time in which two ran side
/// by side counts once, as it does in the costs of a profile.
Json losses_json(const StepTimelines& step, const Costs& costs, const Placement& placement) {
  const ActionCosts planned(costs, placement);
  std::map<std::pair<int, int>, Loss> losses;
  for (const Timeline& rank : step) {
    const std::vector<OwnTime> times = own_times(rank);
    for (std::size_t i = 0; i < rank.size(); ++i) {
      const Span& span = rank[i];
      if (!is_compute(span.action.kind()) || span.beside) continue;
      Loss& loss = losses[{span.action.stage().value, static_cast<int>(span.action.kind())}];
      ++loss.count;
      loss.measured += times[i].worked;
      loss.planned += planned.of(span.action);
    }
  }
  Json json = Json::array();
  for (const auto& [key, loss] : losses) {
    json.push_back({{"stage", key.first},
                    {"rank", placement.rank_of(StageId(key.first)).value},
                    {"kind", kind_text(static_cast<ActionKind>(key.second))},
                    {"count", loss.count},
                    {"measured", loss.measured},
                    {"planned", loss.planned}});
  }
  return json;
}

Json ranks_json(const StepTimelines& step) {
  Json json = Json::array();
  const TimelineSummary summary = summarize(step);
  for (std::size_t r = 0; r < step.size(); ++r) {
    json.push_back({{"busy", summary.busy[r]}, {"idle", summary.seconds - summary.busy[r]}});
  }
  return json;
}

}  // namespace

Reply timeline(const Json& request) {
  const Recording recording = parse_timeline_trace(request.at("text").get_ref<const std::string&>());
  const Profile found = profile(std::span(&recording, 1));
  const Schedule& schedule = found.runs.front().schedule;
  const bool given = request.contains("costs") && !request.at("costs").is_null();
  const Costs costs = given ? costs_of(request) : found.costs;
  const std::size_t at = ordinary_step(recording);
  Reply reply;
  add_simulation(reply, schedule, costs);
  add_timeline(reply, "measured", recording.steps[at]);
  const TimelineSummary summary = summarize(recording.steps[at]);
  std::ostringstream report;
  cli::write_profile_report(report, found);
  reply.json["measured"] = {{"name", recording.name},
                            {"step", at},
                            {"steps", recording.steps.size()},
                            {"seconds", summary.seconds},
                            {"idle", summary.idle()},
                            {"period", found.runs.front().measured_period},
                            {"ranks", ranks_json(recording.steps[at])},
                            {"losses", losses_json(recording.steps[at], costs, schedule.placement)}};
  Json stages = Json::array();
  for (const RankId rank : schedule.placement.ranks_of_stages()) stages.push_back(rank.value);
  reply.json["facts"] = {{"ranks", schedule.ranks()},
                         {"stages", schedule.stages()},
                         {"microbatches", schedule.microbatches},
                         {"placement", schedule.placement.style()},
                         {"rank_of_stage", std::move(stages)}};
  reply.json["report"] = report.str();
  reply.json["costs"] = costs_to_json(found.costs);
  reply.json["csv"] = to_csv(schedule);
  return reply;
}

}  // namespace stagecraft::page

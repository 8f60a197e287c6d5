#include "calls.h"
#include "plan_report.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/csv.h"

namespace stagecraft::page {

Reply plan(const Json& request, const std::function<void(const Json&)>& tell) {
  PlanRequest asked = plan_request_of(request);
  asked.progress = [&](const PlanProgress& progress) {
    tell({{"progress",
           {{"placement", progress.placement},
            {"part", progress.part},
            {"span", progress.span},
            {"bubble", progress.bubble},
            {"lower_bound", progress.lower_bound},
            {"seconds", progress.seconds}}}});
  };
  asked.improved = [&](const Schedule& schedule, const Simulation& simulation) {
    tell({{"better", {{"csv", to_csv(schedule)}, {"span", simulation.span}, {"bubble", simulation.bubble_span()}}}});
  };
  const PlanResult result = stagecraft::plan(asked);
  Reply reply;
  reply.json["plan"] = cli::plan_json(asked, result, {});
  reply.json["csv"] = to_csv(result.schedule);
  return reply;
}

}  // namespace stagecraft::page

#include "picture.h"

#include <algorithm>
#include <limits>

#include "stagecraft/schedule/csv.h"
#include "stagecraft/sim/critical_path.h"
#include "stagecraft/sim/slack.h"

namespace stagecraft::page {
namespace {

void add_action(std::vector<double>& out, std::size_t rank, std::size_t slot, const Action& action,
                const ActionTime& time, double slack) {
  const Action first = action.first();
  const Action second = action.second();
  for (const double value : {double(rank), double(slot), double(first.kind()), double(first.stage().value),
                             double(first.microbatch().value), double(second.kind()), double(second.stage().value),
                             double(second.microbatch().value), time.start, time.end, slack, 0.0}) {
    out.push_back(value);
  }
}

void add_memory(Reply& reply, const Simulation& simulation) {
  const std::size_t begin = reply.numbers.size();
  for (std::size_t r = 0; r < simulation.memory.size(); ++r) {
    for (const MemoryPoint& point : simulation.memory[r]) {
      reply.numbers.insert(reply.numbers.end(), {double(r), point.time, point.memory});
    }
  }
  reply.mark("memory", begin);
}

}  // namespace

void add_simulation(Reply& reply, const Schedule& schedule, const Costs& costs) {
  const Simulation simulation = simulate(schedule, costs, {.keep_times = true, .keep_memory = true});
  const std::vector<std::vector<double>> left = slack(schedule, costs, simulation);
  const std::size_t begin = reply.numbers.size();
  std::vector<std::vector<std::size_t>> index(schedule.rows.size());
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    const Row& row = schedule.rows[r];
    index[r].resize(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].is_idle()) continue;
      index[r][i] = reply.numbers.size();
      add_action(reply.numbers, r, i, row[i], simulation.times[r][i], left[r][i]);
    }
  }
  reply.mark("actions", begin);
  const std::vector<CriticalAction> path = critical_path(schedule, simulation);
  const std::size_t path_begin = reply.numbers.size();
  for (const CriticalAction& at : path) {
    const std::size_t action = index[at.rank.index()][static_cast<std::size_t>(at.slot)];
    reply.numbers[action + kNumbersPerAction - 1] = 1;
    reply.numbers.insert(reply.numbers.end(), {double(at.rank.value), double(at.slot), at.after_message ? 1.0 : 0.0});
  }
  reply.mark("path", path_begin);
  add_memory(reply, simulation);
  const CriticalSummary critical = summarize(path, schedule.ranks());
  cli::add_outcome(reply.json, simulation);
  reply.json["critical"] = {{"actions", path.size()}, {"compute", critical.compute}, {"messages", critical.messages}};
  cli::Json& ranks = reply.json["per_rank"] = cli::Json::array();
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const RankOutcome& rank = simulation.ranks[r];
    ranks.push_back({{"span", rank.span()},
                     {"busy", rank.busy},
                     {"end", rank.end},
                     {"peak_memory", rank.peak_memory},
                     {"on_critical", critical.by_rank[r]}});
  }
}

void add_slots(Reply& reply, const std::vector<Row>& rows) {
  const std::size_t begin = reply.numbers.size();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      if (!rows[r][i].is_idle()) add_action(reply.numbers, r, i, rows[r][i], {double(i), double(i + 1)}, 0);
    }
  }
  reply.mark("actions", begin);
}

void add_timeline(Reply& reply, const std::string& name, const StepTimelines& step) {
  double first = std::numeric_limits<double>::infinity();
  for (const Timeline& rank : step) {
    for (const Span& span : rank) first = std::min(first, span.start);
  }
  const std::size_t begin = reply.numbers.size();
  for (std::size_t r = 0; r < step.size(); ++r) {
    std::size_t slot = 0;
    for (const Span& span : step[r]) {
      if (!is_compute(span.action.kind()) || span.beside) continue;
      add_action(reply.numbers, r, slot++, span.action, {span.start + span.waited - first, span.end - first},
                 span.waited);
    }
  }
  reply.mark(name, begin);
}

}  // namespace stagecraft::page

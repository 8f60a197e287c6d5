#include "stagecraft/schedule/schedule.h"

#include <algorithm>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft {
namespace {

struct Extent {
  std::int32_t last_stage = -1;
  std::int32_t last_microbatch = -1;
  std::int64_t compute_parts = 0;
};

Extent extent_of(const std::vector<Row>& rows) {
  Extent extent;
  for (const Row& row : rows) {
    for (const Action& action : row) {
      for_each_part(action, [&](const Action& part) {
        if (!is_compute(part.kind())) return;
        ++extent.compute_parts;
        extent.last_stage = std::max(extent.last_stage, part.stage().value);
        extent.last_microbatch = std::max(extent.last_microbatch, part.microbatch().value);
      });
    }
  }
  return extent;
}

[[noreturn]] void refuse_gap(std::int32_t missing, std::int32_t last) {
  throw ScheduleError("stage " + std::to_string(missing) + " never computes although stage " + std::to_string(last) +
                          " does: stages are numbered from 0 without gaps, so renumber them or add the missing ones",
                      RankId(0), -1, "");
}

}  // namespace

Schedule Schedule::from_rows(std::vector<Row> rows, std::string name) {
  const Extent extent = extent_of(rows);
  if (extent.compute_parts == 0) {
    throw ScheduleError("there is no compute action at all: a schedule has at least one F", RankId(0), -1, "");
  }
  std::vector<RankId> rank_of;
  // Fewer actions than stages means a gap; finding it must not take memory proportional to a huge stage number.
  rank_of.assign(static_cast<std::size_t>(std::min<std::int64_t>(extent.last_stage + 1, extent.compute_parts + 1)),
                 RankId(-1));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t step = 0; step < rows[r].size(); ++step) {
      for_each_part(rows[r][step], [&](const Action& part) {
        if (!is_compute(part.kind()) || part.stage().index() >= rank_of.size()) return;
        RankId& rank = rank_of[part.stage().index()];
        if (rank == RankId(-1)) rank = RankId(r);
        if (rank == RankId(r)) return;
        throw ScheduleError("stage " + std::to_string(part.stage().value) + " computes on rank " +
                                std::to_string(rank.value) + " and on rank " + std::to_string(r) + " (" +
                                to_text(rows[r][step]) + " at step " + std::to_string(step) +
                                "): a stage lives on one rank, so move all its actions to the same row",
                            RankId(r), static_cast<int>(step), to_text(rows[r][step]));
      });
    }
  }
  const auto gap = std::find(rank_of.begin(), rank_of.end(), RankId(-1));
  if (gap != rank_of.end()) refuse_gap(static_cast<std::int32_t>(gap - rank_of.begin()), extent.last_stage);

  Schedule schedule;
  schedule.name = std::move(name);
  schedule.placement = Placement(static_cast<int>(rows.size()), std::move(rank_of));
  schedule.microbatches = extent.last_microbatch + 1;
  schedule.rows = std::move(rows);
  return schedule;
}

bool Schedule::is_lowered() const {
  return std::any_of(rows.begin(), rows.end(), [](const Row& row) {
    return std::any_of(row.begin(), row.end(), [](const Action& a) { return !a.is_idle() && !is_compute(a.kind()); });
  });
}

bool Schedule::communicates() const {
  return std::any_of(rows.begin(), rows.end(), [](const Row& row) {
    return std::any_of(row.begin(), row.end(), [](const Action& a) { return is_communication(a.kind()); });
  });
}

bool trains(const Row& row) {
  return std::any_of(row.begin(), row.end(), [](const Action& action) {
    bool is_backward = false;
    for_each_part(action, [&](const Action& part) {
      is_backward |= gives_input_gradient(part.kind()) || gives_weight_gradient(part.kind());
    });
    return is_backward;
  });
}

bool Schedule::trains() const {
  return std::any_of(rows.begin(), rows.end(), [](const Row& row) { return stagecraft::trains(row); });
}

std::int64_t Schedule::actions() const {
  std::int64_t count = 0;
  for (const Row& row : rows) {
    count += std::count_if(row.begin(), row.end(), [](const Action& a) { return !a.is_idle(); });
  }
  return count;
}

std::size_t Schedule::slots() const {
  std::size_t count = 0;
  for (const Row& row : rows) count += row.size();
  return count;
}

std::int64_t Schedule::idle_slots() const { return static_cast<std::int64_t>(slots()) - actions(); }

}  // namespace stagecraft

#include "stagecraft/runtime/schedule_choice.h"

#include "stagecraft/runtime/auto_schedule.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft {

bool ScheduleChoice::is_auto() const { return !own_ && stagecraft::is_auto(name_); }

std::optional<Schedule> ScheduleChoice::given() const {
  if (own_) return *own_;
  if (is_schedule_file(name_)) return read_schedule(name_);
  return std::nullopt;
}

Placement ScheduleChoice::placement(int ranks, int stages_per_rank) const {
  if (own_) return own_->placement;
  if (is_schedule_file(name_)) return read_schedule(name_).placement;
  if (is_auto()) return auto_placement(ranks, stages_per_rank);
  return make_schedule(name_, {.ranks = ranks, .stages_per_rank = stages_per_rank, .microbatches = 1}).placement;
}

}  // namespace stagecraft

#include "stagecraft/passes/verify.h"

#include <algorithm>
#include <sstream>

#include "checks.h"
#include "stagecraft/schedule/table.h"
#include "well_formed.h"

namespace stagecraft {

bool Verdict::ok() const { return first_refusal() == nullptr; }

const Refusal* Verdict::refusal(CommModel model) const {
  if (fault) return &*fault;
  const auto& own = by_model[static_cast<std::size_t>(model)];
  return own ? &*own : nullptr;
}

const Refusal* Verdict::first_refusal() const {
  for (const CommModel model : kCommModels) {
    if (const Refusal* found = refusal(model)) return found;
  }
  return nullptr;
}

Verdict verify(const Schedule& schedule) {
  Verdict verdict;
  verdict.lowered = schedule.is_lowered();
  const bool communicates = schedule.communicates();
  verdict.fault = detail::check_extent(schedule);
  if (!verdict.fault) verdict.fault = detail::check_structure(schedule, communicates);
  if (verdict.fault) return verdict;
  if (!communicates) {
    verdict.fault = detail::check_tagged(schedule, communicates);
    return verdict;
  }
  // The strictest model first: a schedule that passes it passes the others, and most schedules do.
  auto& rendezvous = verdict.by_model[static_cast<std::size_t>(CommModel::kRendezvous)];
  rendezvous = detail::check_rendezvous(schedule);
  if (!rendezvous) return verdict;
  verdict.fault = detail::check_tagged(schedule, communicates);
  if (!verdict.fault)
    verdict.by_model[static_cast<std::size_t>(CommModel::kInOrder)] = detail::check_pair_order(schedule);
  return verdict;
}

void require_sound(const Schedule& schedule) {
  if (const auto fault = verify(schedule).fault) {
    throw ScheduleError(fault->message, fault->rank, fault->step, to_text(fault->action));
  }
}

void require_valid(const Schedule& schedule, CommModel model) {
  const Verdict verdict = verify(schedule);
  if (const Refusal* refusal = verdict.refusal(model)) {
    throw ScheduleError(refusal->full_text(), refusal->rank, refusal->step, to_text(refusal->action));
  }
}

std::string Refusal::full_text() const {
  std::string text = message + "\n";
  for (const Waiting& w : cycle) {
    text += "  rank " + std::to_string(w.rank.value) + " at step " + std::to_string(w.step) + " (" + to_text(w.action) +
            ") waits for " + to_text(w.on_action) + " of rank " + std::to_string(w.on_rank.value);
    text += w.on_step >= 0 ? " at step " + std::to_string(w.on_step) + "\n" : ", which is nowhere\n";
  }
  return text + excerpt;
}

namespace detail {
namespace {

constexpr int kStepsAround = 4;
constexpr int kRanksAround = 3;
constexpr int kMostRanks = 12;

std::string place(RankId rank, int step) {
  return "rank " + std::to_string(rank.value) + ", step " + std::to_string(step);
}

/// The part of the table around a slot. For a cycle, includes its other ranks if they are near.
std::string excerpt(const Schedule& schedule, RankId rank, int step, const std::vector<Waiting>& cycle) {
  int first_rank = rank.value - kRanksAround;
  int last_rank = rank.value + kRanksAround;
  int first_step = step - kStepsAround;
  int last_step = step + kStepsAround;
  for (const Waiting& waiting : cycle) {
    if (std::abs(waiting.rank.value - rank.value) >= kMostRanks) continue;
    first_rank = std::min(first_rank, waiting.rank.value);
    last_rank = std::max(last_rank, waiting.rank.value);
    if (std::abs(waiting.step - step) > 3 * kStepsAround) continue;
    first_step = std::min(first_step, waiting.step - 1);
    last_step = std::max(last_step, waiting.step + 1);
  }
  std::ostringstream out;
  TableOptions options;
  options.first_rank = std::max(0, first_rank);
  options.end_rank = last_rank + 1;
  options.first_step = std::max(0, first_step);
  options.end_step = last_step + 1;
  options.mark = TableMark{rank, step};
  write_table(out, schedule.rows, options);
  return out.str();
}

}  // namespace

Refusal refuse_at(const Schedule& schedule, RankId rank, std::size_t step, const std::string& why) {
  Refusal refusal;
  refusal.rank = rank;
  refusal.step = static_cast<int>(step);
  refusal.action = schedule.rows[rank.index()][step];
  refusal.message = place(rank, refusal.step) + ": " + to_text(refusal.action) + ": " + why;
  refusal.excerpt = excerpt(schedule, rank, refusal.step, {});
  return refusal;
}

Refusal refuse_missing(RankId rank, const Action& missing, const std::string& why) {
  Refusal refusal;
  refusal.rank = rank;
  refusal.action = missing;
  const std::string what = missing.is_idle() ? "every action" : to_text(missing);
  refusal.message = "rank " + std::to_string(rank.value) + ": " + what + " is missing: " + why;
  return refusal;
}

Refusal refuse_empty_rank(RankId rank) {
  return refuse_missing(rank, Action::idle(), "every rank has a stage to run, so fill the row or remove it");
}

Refusal refuse_cycle(const Schedule& schedule, std::vector<Waiting> cycle, const std::string& why) {
  const Waiting& first = cycle.front();
  Refusal refusal;
  refusal.rank = first.rank;
  refusal.step = first.step;
  refusal.action = first.action;
  refusal.message = place(first.rank, first.step) + ": " + to_text(first.action) + ": " + why + " (" +
                    std::to_string(cycle.size()) + (cycle.size() == 1 ? " rank waits" : " ranks wait") +
                    " for each other)";
  refusal.excerpt = excerpt(schedule, first.rank, first.step, cycle);
  refusal.cycle = std::move(cycle);
  return refusal;
}

int step_of(const Row& row, const Action& action) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    bool found = false;
    for_each_part(row[i], [&](const Action& part) { found |= part == action; });
    if (found) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace detail
}  // namespace stagecraft

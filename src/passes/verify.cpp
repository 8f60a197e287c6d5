#include "stagecraft/passes/verify.h"

#include "execution.h"
#include "stagecraft/schedule/action.h"
#include "structure.h"
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

void require_valid(const Schedule& schedule, CommModel model) {
  const Verdict verdict = verify(schedule);
  if (const Refusal* refusal = verdict.refusal(model)) {
    throw ScheduleError(refusal->full_text(), refusal->rank, refusal->step, to_text(refusal->action));
  }
}

}  // namespace stagecraft

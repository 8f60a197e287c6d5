#include "judgement.h"

#include <fmt/format.h>

#include "stagecraft/passes/pass.h"

namespace stagecraft::cli {

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

}  // namespace stagecraft::cli

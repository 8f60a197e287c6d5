#pragma once

#include <span>
#include <string>

#include "failure.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft::cli {

/// The verdict on a schedule of a user. A compute-only schedule has no messages, so if it has no fault, a copy lowered
/// by `send_recv` is verified under the three models instead.
struct Judgement {
  Verdict verdict;
  /// Whether ranks and steps of the verdict refer to the lowered copy.
  bool of_lowered_copy = false;

  /// The first refusal under any of these models; null when all are safe.
  [[nodiscard]] const Refusal* refusal(std::span<const CommModel> models) const;
  /// The failure to throw for a refusal.
  [[nodiscard]] Failure failure(const std::string& subject, const Refusal& refusal) const;
};

Judgement judge(const Schedule& schedule);

/// "as it stands" or "after send_recv".
std::string_view judged_form(const Judgement& judgement);

}  // namespace stagecraft::cli

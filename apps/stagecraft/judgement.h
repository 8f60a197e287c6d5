#pragma once

#include <span>
#include <string>

#include "failure.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft::cli {

/// What `verify` says of a schedule that a user handed in. A compute-only one has no messages to judge, so once it is
/// found sound a copy lowered by `send_recv` stands in for it under the three models.
struct Judgement {
  Verdict verdict;
  /// The verdict's places are those of the lowered copy.
  bool of_lowered_copy = false;

  /// The first refusal under any of these models; null when all are safe.
  [[nodiscard]] const Refusal* refusal(std::span<const CommModel> models) const;
  /// The failure that ends the command for it.
  [[nodiscard]] Failure failure(const std::string& subject, const Refusal& refusal) const;
};

Judgement judge(const Schedule& schedule);

/// "as it stands" or "after send_recv".
std::string_view judged_form(const Judgement& judgement);

}  // namespace stagecraft::cli

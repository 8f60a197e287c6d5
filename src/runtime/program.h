#pragma once

#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// One action, with everything about it that can be known before the first step.
struct Instruction {
  ActionKind kind = ActionKind::kIdle;
  std::uint32_t stage = 0;  // among the rank's own stages
  MicrobatchId microbatch;
  RankId peer{-1};         // of a message
  std::uint32_t next = 0;  // of a forward or backward: the neighbour on this rank that takes its result; or kNobody
  std::uint32_t step = 0;  // in the rank's row, for errors

  static constexpr std::uint32_t kNobody = UINT32_MAX;
};

/// What one rank does in a step, flat. The halves of an overlap are two instructions of one step.
using Program = std::vector<Instruction>;

/// `schedule` is lowered and verified.
Program compile(const Schedule& schedule, RankId rank);

/// The forwards of a schedule and nothing else, lowered anew: what evaluation runs, on any placement.
Schedule forwards_of(const Schedule& compute_only);

}  // namespace stagecraft

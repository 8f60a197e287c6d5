#include "program.h"

#include "stagecraft/passes/pass.h"

namespace stagecraft {
namespace {

Instruction translate(const Schedule& schedule, RankId rank, const Action& action, std::size_t step) {
  const Placement& placement = schedule.placement;
  Instruction instruction;
  instruction.kind = action.kind();
  instruction.stage = static_cast<std::uint32_t>(placement.local_index(action.stage()));
  instruction.microbatch = action.microbatch();
  instruction.step = static_cast<std::uint32_t>(step);
  instruction.next = Instruction::kNobody;
  if (is_communication(action.kind())) instruction.peer = placement.rank_of(peer_stage(action));
  const bool up = action.kind() == ActionKind::kForward;
  if (up || gives_input_gradient(action.kind())) {
    const StageId neighbour = up ? action.stage() + 1 : action.stage() - 1;
    if (placement.contains(neighbour) && placement.rank_of(neighbour) == rank) {
      instruction.next = static_cast<std::uint32_t>(placement.local_index(neighbour));
    }
  }
  return instruction;
}

}  // namespace

Program compile(const Schedule& schedule, RankId rank) {
  Program program;
  const Row& row = schedule.rows[rank.index()];
  program.reserve(row.size());
  for (std::size_t step = 0; step < row.size(); ++step) {
    if (row[step].is_idle()) continue;
    program.push_back(translate(schedule, rank, row[step].first(), step));
    if (row[step].is_overlap()) program.push_back(translate(schedule, rank, row[step].second(), step));
  }
  return program;
}

Schedule forwards_of(const Schedule& compute_only) {
  Schedule forwards{compute_only.name, compute_only.placement, compute_only.microbatches, {}};
  for (const Row& row : compute_only.rows) {
    Row& kept = forwards.rows.emplace_back();
    for (const Action& action : row) {
      for_each_part(action, [&](const Action& part) {
        if (part.kind() == ActionKind::kForward) kept.push_back(part);
      });
    }
  }
  run_passes(forwards, "send_recv");
  return forwards;
}

}  // namespace stagecraft

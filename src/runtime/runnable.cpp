#include "runnable.h"

#include <algorithm>

#include "stagecraft/passes/pass.h"
#include "stagecraft/passes/verify.h"

namespace stagecraft {
namespace {

std::vector<std::size_t> completion_order(const Program& program) {
  std::vector<std::size_t> order;
  for (auto instruction = program.rbegin(); instruction != program.rend(); ++instruction) {
    if (!gives_weight_gradient(instruction->kind)) continue;
    if (std::find(order.begin(), order.end(), instruction->stage) == order.end()) order.push_back(instruction->stage);
  }
  std::reverse(order.begin(), order.end());
  return order;
}

std::vector<std::size_t> never_reduced(const Program& program) {
  std::vector<std::size_t> stages = completion_order(program);
  std::erase_if(stages, [&](std::size_t stage) {
    return std::any_of(program.begin(), program.end(), [&](const Instruction& instruction) {
      return instruction.kind == ActionKind::kReduceGrad && instruction.stage == stage;
    });
  });
  return stages;
}

}  // namespace

Runnable make_runnable(Schedule schedule, const std::string& passes, RankId rank) {
  Runnable runnable;
  runnable.schedule = std::move(schedule);
  if (!runnable.schedule.is_lowered()) run_passes(runnable.schedule, passes);
  require_valid(runnable.schedule, CommModel::kTagged);
  runnable.program = compile(runnable.schedule, rank);
  runnable.completion_order = completion_order(runnable.program);
  runnable.never_reduced = never_reduced(runnable.program);
  return runnable;
}

bool trains(const Schedule& schedule) {
  for (const Row& row : schedule.rows) {
    for (const Action& action : row) {
      if (gives_input_gradient(action.kind()) || action.is_overlap()) return true;
    }
  }
  return false;
}

}  // namespace stagecraft

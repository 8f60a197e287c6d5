#include "program.h"

#include <algorithm>
#include <mutex>

#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/generator.h"
#include "starting_schedule.h"

namespace stagecraft {

// --- resolve ---

Schedule resolve(const PipelineOptions& options, const std::vector<std::vector<StageId>>& stages_by_rank, RankId rank) {
  const auto ranks = static_cast<int>(stages_by_rank.size());
  const auto stages_per_rank = static_cast<int>(stages_by_rank[rank.index()].size());
  std::optional<Schedule> given = options.schedule.given();
  if (!given && options.microbatches == 0) {
    throw InvalidArgument("the number of microbatches is not given: set it in the options, to " +
                          std::to_string(4 * ranks) +
                          " (four for each rank) if in doubt; with 1, ranks wait for each "
                          "other all the time");
  }
  if (options.schedule.is_auto()) {
    return starting_schedule(placement_of(stages_by_rank), options.microbatches);
  }
  if (!given) {
    return make_schedule(options.schedule.name(),
                         {.ranks = ranks, .stages_per_rank = stages_per_rank, .microbatches = options.microbatches});
  }
  Schedule schedule = *std::move(given);
  if (schedule.ranks() != ranks) {
    throw InvalidArgument("the schedule is for " + std::to_string(schedule.ranks()) + " ranks, but the world has " +
                          std::to_string(ranks) + ": start as many, or give another schedule");
  }
  if (options.microbatches != 0 && options.microbatches != schedule.microbatches) {
    throw InvalidArgument("the schedule is for " + std::to_string(schedule.microbatches) + " microbatches, but " +
                          std::to_string(options.microbatches) +
                          " are asked for: leave the number out, or give another schedule");
  }
  return schedule;
}

void check_stages(const std::vector<Stage>& stages, const Schedule& schedule, RankId rank) {
  const auto expected = schedule.placement.stages_of(rank);
  std::string wanted;
  for (const StageId stage : expected) wanted += (wanted.empty() ? "" : ", ") + std::to_string(stage.value);
  for (const Stage& stage : stages) {
    if (!schedule.placement.contains(stage.index())) {
      throw InvalidArgument("rank " + std::to_string(rank.value) + " has stage " + std::to_string(stage.index().value) +
                            ", but the pipeline has stages 0 to " + std::to_string(schedule.stages() - 1));
    }
  }
  const bool same = stages.size() == expected.size() &&
                    std::equal(stages.begin(), stages.end(), expected.begin(),
                               [](const Stage& stage, StageId id) { return stage.index() == id; });
  if (same) return;
  std::string got;
  for (const Stage& stage : stages) got += (got.empty() ? "" : ", ") + std::to_string(stage.index().value);
  throw InvalidArgument("rank " + std::to_string(rank.value) + " has stages " + (got.empty() ? "(none)" : got) +
                        ", but the schedule wants stages " + wanted +
                        " there: every rank makes its own, and no rank goes without");
}

// --- lower ---

Schedule forwards_of(const Schedule& schedule) {
  Schedule forwards{schedule.name, schedule.placement, schedule.microbatches, {}};
  for (const Row& row : schedule.rows) {
    Row& kept = forwards.rows.emplace_back();
    for (const Action& action : row) {
      for_each_part(action, [&](const Action& part) {
        if (part.kind() == ActionKind::kForward) kept.push_back(part);
      });
    }
  }
  return forwards;
}

namespace {

struct Lowered {
  Schedule given;
  std::string passes;
  CommModel model;
  Schedule schedule;
};

}  // namespace

std::shared_ptr<const Schedule> lower(Schedule schedule, const std::string& passes, CommModel model) {
  static std::mutex mutex;
  static std::vector<std::weak_ptr<const Lowered>> known;
  const std::lock_guard lock(mutex);  // held while the first rank lowers: the others wait, and share its result
  std::erase_if(known, [](const auto& one) { return one.expired(); });
  for (const auto& one : known) {
    const std::shared_ptr<const Lowered> there = one.lock();
    if (there && there->passes == passes && there->model == model && there->given == schedule &&
        there->given.name == schedule.name) {
      return {there, &there->schedule};
    }
  }
  const auto made = std::make_shared<Lowered>(Lowered{schedule, passes, model, std::move(schedule)});
  if (!made->schedule.is_lowered()) run_passes(made->schedule, passes);
  require_valid(made->schedule, model);
  known.push_back(made);
  return {made, &made->schedule};
}

// --- compile ---

namespace {

Instruction translate(const Schedule& schedule, RankId rank, const std::vector<RankId>& ranks, const Action& action,
                      std::size_t step) {
  const Placement& placement = schedule.placement;
  const StageId stage = action.stage();
  Instruction instruction;
  instruction.action = action;
  instruction.step = static_cast<std::uint32_t>(step);
  instruction.stage = static_cast<std::uint32_t>(placement.local_index(stage));
  const auto is_here = [&](StageId other) { return placement.contains(other) && placement.rank_of(other) == rank; };
  const auto message = [&](MessageKind kind, StageId from, StageId to) {
    const StageId other = from == stage ? to : from;
    if (!placement.contains(other) || is_here(other)) return;
    instruction.peer = ranks[placement.rank_of(other).index()];
    instruction.tag = {kind, from, to, action.microbatch()};
  };
  switch (action.kind()) {
    case ActionKind::kForward:
    case ActionKind::kRecvForward:
      message(MessageKind::kForward, stage - 1, stage);
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kRecvBackward:
      message(MessageKind::kBackward, stage + 1, stage);
      break;
    case ActionKind::kSendForward:
      message(MessageKind::kForward, stage, stage + 1);
      break;
    case ActionKind::kSendBackward:
      message(MessageKind::kBackward, stage, stage - 1);
      break;
    default:
      break;
  }
  const bool up = action.kind() == ActionKind::kForward;
  if (up || gives_input_gradient(action.kind())) {
    const StageId neighbour = up ? stage + 1 : stage - 1;
    if (is_here(neighbour)) instruction.next = static_cast<std::uint32_t>(placement.local_index(neighbour));
  }
  return instruction;
}

std::vector<std::size_t> completion_order(const std::vector<Instruction>& instructions) {
  std::vector<std::size_t> order;
  for (auto one = instructions.rbegin(); one != instructions.rend(); ++one) {
    if (!gives_weight_gradient(one->action.kind())) continue;
    if (std::find(order.begin(), order.end(), one->stage) == order.end()) order.push_back(one->stage);
  }
  std::reverse(order.begin(), order.end());
  return order;
}

void find_returns(std::vector<Instruction>& instructions) {
  Instruction* last = nullptr;  // that computes
  for (Instruction& one : instructions) {
    if (!is_compute(one.action.kind())) continue;
    if (last != nullptr && last->action.kind() == ActionKind::kForward && gives_input_gradient(one.action.kind())) {
      last->returns_at_once = last->stage == one.stage && last->action.microbatch() == one.action.microbatch();
    }
    last = &one;
  }
}

}  // namespace

Program compile(std::shared_ptr<const Schedule> schedule, RankId rank, const std::vector<RankId>& ranks) {
  Program program;
  const Row& row = schedule->rows[rank.index()];
  program.instructions.reserve(row.size());
  for (std::size_t step = 0; step < row.size(); ++step) {
    if (row[step].is_idle()) continue;
    program.has_overlaps |= row[step].is_overlap();
    for_each_part(row[step], [&](const Action& action) {
      program.instructions.push_back(translate(*schedule, rank, ranks, action, step));
      program.has_messages |= program.instructions.back().peer.value >= 0;
    });
  }
  find_returns(program.instructions);
  program.completion_order = completion_order(program.instructions);
  program.never_reduced = program.completion_order;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.action.kind() == ActionKind::kReduceGrad) std::erase(program.never_reduced, instruction.stage);
  }
  program.schedule = std::move(schedule);
  return program;
}

}  // namespace stagecraft

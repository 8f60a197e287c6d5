#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stagecraft/core/comm_model.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/transport/message.h"

/// The way from the user's options to what one rank executes:
///
///     options ──resolve──▶ schedule of all ranks ──lower──▶ with messages, verified ──compile──▶ program of one rank
namespace stagecraft {

/// The schedule of the options, or the one that "auto" starts with. `stages_by_rank`: the stages of every rank of the
/// pipeline. Throws InvalidArgument.
Schedule resolve(const PipelineOptions& options, const std::vector<std::vector<StageId>>& stages_by_rank, RankId rank);

/// Throws InvalidArgument unless the rank has the stages that the schedule puts there.
void check_stages(const std::vector<Stage>& stages, const Schedule& schedule, RankId rank);

/// The forwards of a schedule and nothing else, compute-only; used for evaluation.
Schedule forwards_of(const Schedule& schedule);

/// Runs `passes` on a compute-only schedule; a lowered one stays as it is. Throws ScheduleError when the result is not
/// valid under `model`. Ranks of one process that ask for the same schedule share one object, because it holds the
/// actions of all ranks.
std::shared_ptr<const Schedule> lower(Schedule schedule, const std::string& passes, CommModel model);

/// One action, with everything about it that can be known before the first step.
struct Instruction {
  Action action;            ///< Never an overlap: its halves are two instructions with the same `step`.
  std::uint32_t step = 0;   ///< Index of the slot in the rank's row.
  std::uint32_t stage = 0;  ///< Index among the rank's own stages.
  /// The rank's own stage that takes the result of a forward or backward, or kNobody.
  std::uint32_t next = kNobody;
  /// Of a forward: whether the rank computes the microbatch's backward in this stage right after it, so that dropping
  /// its graph would save nothing.
  bool returns_at_once = false;
  /// The message that a SEND sends, a RECV posts, or a compute action waits for. `peer` is a rank of the world, -1
  /// without a message.
  RankId peer{-1};
  Tag tag;

  static constexpr std::uint32_t kNobody = UINT32_MAX;
};

/// What one rank does in a step.
struct Program {
  std::shared_ptr<const Schedule> schedule;  ///< Lowered and verified.
  std::vector<Instruction> instructions;
  /// Indices of the rank's stages, in the order in which their gradients are complete.
  std::vector<std::size_t> completion_order;
  /// The stages that the schedule does not reduce, in the same order.
  std::vector<std::size_t> never_reduced;
  bool has_overlaps = false;
  bool has_messages = false;
};

/// `ranks`: the ranks of the pipeline as ranks of the world; `rank` is an index into it.
Program compile(std::shared_ptr<const Schedule> schedule, RankId rank, const std::vector<RankId>& ranks);

}  // namespace stagecraft

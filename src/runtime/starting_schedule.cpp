#include "starting_schedule.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>

#include "stagecraft/core/error.h"
#include "stagecraft/runtime/auto_schedule.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft {
namespace {

/// All forwards and then all backwards, stage by stage, on any placement.
Schedule breadth_first(const Placement& placement, int microbatches) {
  Schedule schedule{"breadth-first", placement, microbatches, {}};
  for (int r = 0; r < placement.ranks(); ++r) {
    Row& row = schedule.rows.emplace_back();
    const auto own = placement.stages_of(RankId(r));
    for (const StageId stage : own) {
      for (int m = 0; m < microbatches; ++m) row.push_back(Action::forward(stage, MicrobatchId(m)));
    }
    for (auto stage = own.rbegin(); stage != own.rend(); ++stage) {
      for (int m = 0; m < microbatches; ++m) row.push_back(Action::backward(*stage, MicrobatchId(m)));
    }
  }
  return schedule;
}

}  // namespace

bool is_auto(std::string_view schedule) {
  constexpr std::string_view kAuto = "auto";
  return std::equal(schedule.begin(), schedule.end(), kAuto.begin(), kAuto.end(),
                    [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; });
}

Placement auto_placement(int ranks, int stages_per_rank) {
  if (stages_per_rank < 0) {
    throw InvalidArgument("stages_per_rank is a number from 1 on, or 0 for one, got " +
                          std::to_string(stages_per_rank));
  }
  if (stages_per_rank <= 1) return Placement::linear(ranks);
  return stages_per_rank == 2 ? Placement::v(ranks, 2) : Placement::loop(ranks, stages_per_rank);
}

Placement placement_of(const std::vector<std::vector<StageId>>& stages_by_rank) {
  std::size_t stages = 0;
  for (const auto& own : stages_by_rank) stages += own.size();
  const RankId nowhere(-1);
  std::vector<RankId> rank_of(stages, nowhere);
  for (std::size_t r = 0; r < stages_by_rank.size(); ++r) {
    for (const StageId stage : stages_by_rank[r]) {
      const std::string name = "stage " + std::to_string(stage.value) + " of rank " + std::to_string(r);
      if (stage.value < 0 || stage.index() >= stages) {
        throw InvalidArgument(name + ": all ranks together have " + std::to_string(stages) +
                              " stages, which are numbered from 0 without gaps");
      }
      if (rank_of[stage.index()] != nowhere) {
        throw InvalidArgument(name + " is on rank " + std::to_string(rank_of[stage.index()].value) +
                              " too: every stage is on one rank, once");
      }
      rank_of[stage.index()] = RankId(r);
    }
  }
  return {static_cast<int>(stages_by_rank.size()), std::move(rank_of)};
}

Schedule starting_schedule(const Placement& placement, int microbatches) {
  const int ranks = placement.ranks();
  const int per_rank = placement.stages() / ranks;
  const bool is_loop = placement == Placement::loop(ranks, per_rank);
  if (!is_loop && !(placement == Placement::v(ranks, per_rank))) {
    std::ostringstream text;
    text << "schedule \"auto\" plans for stages that lie linear, in a loop or in a V, but these lie on ranks";
    for (const RankId rank : placement.ranks_of_stages()) text << ' ' << rank.value;
    text << ": place them so, as stages_here and split do, or give a schedule of your own";
    throw InvalidArgument(text.str());
  }
  constexpr std::array kNames = {"1F1B", "Interleaved1F1B", "1F1B-V"};
  for (const char* name : kNames) {
    const Generator& generator = find_generator(name);
    if (per_rank < generator.min_stages_per_rank || per_rank > generator.max_stages_per_rank) continue;
    Schedule schedule =
        make_schedule(name, {.ranks = ranks, .stages_per_rank = per_rank, .microbatches = microbatches});
    if (schedule.placement == placement) return schedule;
  }
  return breadth_first(placement, microbatches);
}

}  // namespace stagecraft

#include "stagecraft/schedule/placement.h"

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

std::vector<RankId> map_of(int ranks, int stages_per_rank, bool snake) {
  if (ranks < 1 || stages_per_rank < 1) {
    throw InvalidArgument("a placement needs at least 1 rank and 1 stage per rank, got " + std::to_string(ranks) +
                          " and " + std::to_string(stages_per_rank));
  }
  std::vector<RankId> map;
  map.reserve(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(stages_per_rank));
  for (int lap = 0; lap < stages_per_rank; ++lap) {
    const bool upwards = snake && lap % 2 == 1;
    for (int i = 0; i < ranks; ++i) map.emplace_back(upwards ? ranks - 1 - i : i);
  }
  return map;
}

}  // namespace

Placement::Placement(int ranks, std::vector<RankId> rank_of_stage) : rank_of_(std::move(rank_of_stage)) {
  if (ranks < 1) throw InvalidArgument("a placement needs at least 1 rank, got " + std::to_string(ranks));
  first_.assign(static_cast<std::size_t>(ranks) + 1, 0);
  for (std::size_t s = 0; s < rank_of_.size(); ++s) {
    if (rank_of_[s].value < 0 || rank_of_[s].value >= ranks) {
      throw InvalidArgument("stage " + std::to_string(s) + " is placed on rank " + std::to_string(rank_of_[s].value) +
                            ": ranks are 0 to " + std::to_string(ranks - 1));
    }
    ++first_[rank_of_[s].index() + 1];
  }
  local_index_.resize(rank_of_.size());
  grouped_.resize(rank_of_.size());
  std::vector<int> filled(static_cast<std::size_t>(ranks), 0);
  for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) first_[r + 1] += first_[r];
  for (std::size_t s = 0; s < rank_of_.size(); ++s) {
    const std::size_t rank = rank_of_[s].index();
    local_index_[s] = filled[rank]++;
    grouped_[static_cast<std::size_t>(first_[rank]) + static_cast<std::size_t>(local_index_[s])] = StageId(s);
  }
}

Placement Placement::loop(int ranks, int stages_per_rank) {
  return {ranks, map_of(ranks, stages_per_rank, /*snake=*/false)};
}

Placement Placement::v(int ranks, int stages_per_rank) {
  return {ranks, map_of(ranks, stages_per_rank, /*snake=*/true)};
}

std::span<const StageId> Placement::stages_of(RankId rank) const {
  const auto begin = static_cast<std::size_t>(first_[rank.index()]);
  const auto end = static_cast<std::size_t>(first_[rank.index() + 1]);
  return std::span(grouped_).subspan(begin, end - begin);
}

std::string_view Placement::style() const {
  if (ranks() < 1 || stages() == 0 || stages() % ranks() != 0) return "custom";
  const int per_rank = stages() / ranks();
  if (rank_of_ == map_of(ranks(), per_rank, false)) return per_rank == 1 ? "linear" : "loop";
  return rank_of_ == map_of(ranks(), per_rank, true) ? "v" : "custom";
}

}  // namespace stagecraft

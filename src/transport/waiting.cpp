#include "waiting.h"

#include <algorithm>

namespace stagecraft {
namespace {

std::string rank_text(RankId rank) { return "rank " + std::to_string(rank.value); }

bool is_at_end_of_step(const Standing& standing) {
  return std::any_of(standing.waits.begin(), standing.waits.end(), [](const Wait& wait) { return wait.is_settling; });
}

/// Finds the path from a wait to the rank that holds it up.
class Search {
 public:
  Search(int ranks, const StandingOf& standing_of)
      : standing_of_(standing_of), is_visited_(static_cast<std::size_t>(ranks), false) {}

  /// True when the path ends at a rank that does not wait; `path` then has the ranks on the way, that rank last.
  bool follow(RankId rank, const Wait& why, std::vector<RankId>& path) {
    if (is_visited_[rank.index()]) return false;
    is_visited_[rank.index()] = true;
    path.push_back(rank);
    const Standing& standing = standing_of_(rank);
    const std::vector<const Wait*> waits = blocking(standing, why);
    if (waits.empty()) return true;
    for (const Wait* wait : waits) {
      for (const RankId next : peers_of(*wait)) {
        if (follow(next, *wait, path)) return true;
      }
    }
    path.pop_back();
    return false;
  }

  /// The ranks that a wait is for.
  [[nodiscard]] std::vector<RankId> peers_of(const Wait& wait) const {
    if (!wait.is_settling) return {wait.from};
    std::vector<RankId> missing;
    for (std::size_t r = 0; r < is_visited_.size(); ++r) {
      if (!is_at_end_of_step(standing_of_(RankId(r)))) missing.emplace_back(r);
    }
    return missing;
  }

 private:
  /// The waits of a rank that keep it from doing what `why` waits for.
  static std::vector<const Wait*> blocking(const Standing& standing, const Wait& why) {
    std::vector<const Wait*> of_group, of_main, beside;
    const bool is_collective = !why.is_settling && why.tag.kind == MessageKind::kCollective;
    for (const Wait& wait : standing.waits) {
      const bool is_alike = is_collective && !wait.is_settling && wait.tag.kind == MessageKind::kCollective;
      if (is_alike && wait.tag.from == why.tag.from) of_group.push_back(&wait);
      (wait.is_main ? of_main : beside).push_back(&wait);
    }
    if (!of_group.empty()) return of_group;
    return of_main.empty() && standing.is_resting ? beside : of_main;
  }

  const StandingOf& standing_of_;
  std::vector<bool> is_visited_;
};

std::string end_of_step_text(const std::vector<RankId>& missing) {
  std::string text = "the end of the step on rank ";
  for (std::size_t i = 0; i < missing.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(missing[i].value);
  return text;
}

std::string state_text(const Standing& standing) {
  if (!standing.has_answered) return "which does not answer (its process may be stopped)";
  return "which does not wait for any rank (it is " +
         (standing.activity.empty() ? "outside of the schedule" : "at " + standing.activity) + ")";
}

}  // namespace

TransportError no_such_rank(RankId rank, int ranks) {
  return {"there is no rank " + std::to_string(rank.value) + ": the world has ranks 0 to " + std::to_string(ranks - 1),
          rank};
}

std::string to_text(const Wait& wait) {
  if (wait.is_settling) return "the end of the step";
  return (wait.purpose != nullptr ? to_text(*wait.purpose) : to_text(wait.tag)) + " from " + rank_text(wait.from);
}

TimeoutError timeout_error(RankId own, int ranks, const Wait& wait, Timeout timeout, const StandingOf& standing_of) {
  Search search(ranks, standing_of);
  std::vector<RankId> peers = search.peers_of(wait);
  std::erase(peers, own);
  const std::string begin = rank_text(own) + " waited " + std::to_string(timeout.count()) + " ms for " +
                            (wait.is_settling && !peers.empty() ? end_of_step_text(peers) : to_text(wait));
  if (peers.empty()) return {begin + ", which came at the last moment: allow more time", own};
  std::vector<RankId> path;
  const bool is_found =
      std::any_of(peers.begin(), peers.end(), [&](RankId peer) { return search.follow(peer, wait, path); });
  if (!is_found) {
    return {begin +
                ", which waits for others that wait for it: look at whether all ranks do the same things in the "
                "same order",
            peers.front()};
  }
  // If the text has named several ranks, name the one that the path begins with.
  std::string chain = peers.size() > 1 ? ", of which " + rank_text(path.front()) : "";
  const char* link = peers.size() > 1 ? " waits for " : ", which waits for ";
  for (std::size_t i = 1; i < path.size(); ++i) {
    chain += link + rank_text(path[i]);
    link = ", which waits for ";
  }
  const RankId culprit = path.back();
  std::string state = state_text(standing_of(culprit));
  const bool is_directly_named = path.size() == 1 && peers.size() > 1;
  chain += is_directly_named ? state.substr(5) : ", " + state;  // without "which"
  return {begin + chain + ": look at what " + rank_text(culprit) + " does, or allow more time", culprit};
}

}  // namespace stagecraft

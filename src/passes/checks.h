#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stagecraft/passes/verify.h"

/// The parts of the verifier: what each rank's row must hold, replays of all rows under each model of communication,
/// and the refusals they report.
namespace stagecraft::detail {

/// Checks everything that can be checked rank by rank: each action occurs exactly once, on its rank, after what it
/// needs on that rank. The schedule must have passed check_extent. `communicates` says whether the schedule has SENDs
/// and RECVs, so that every input from another rank must have been received.
std::optional<Refusal> check_structure(const Schedule& schedule, bool communicates);

// Replays of a schedule that has passed check_structure, one per model of communication. They return null when every
// rank reaches its end.

/// Only a compute blocks, until its input is sent (without communication: until its input is computed).
std::optional<Refusal> check_tagged(const Schedule& schedule, bool communicates);

/// The n-th SEND from one rank to another must match the n-th RECV there.
std::optional<Refusal> check_pair_order(const Schedule& schedule);

/// Every SEND and RECV blocks until its counterpart is reached. Success implies the other two models.
std::optional<Refusal> check_rendezvous(const Schedule& schedule);

/// A refusal at an action of the table. `why` gives rule and remedy.
Refusal refuse_at(const Schedule& schedule, RankId rank, std::size_t step, const std::string& why);

/// A refusal because an action is missing on its rank.
Refusal refuse_missing(RankId rank, const Action& missing, const std::string& why);

/// A refusal because a rank has no action.
Refusal refuse_empty_rank(RankId rank);

/// A refusal because ranks wait for each other; `cycle` must not be empty.
Refusal refuse_cycle(const Schedule& schedule, std::vector<Waiting> cycle, const std::string& why);

/// The action that a blocked rank waits for, and the rank of that action.
struct Need {
  RankId rank;
  Action action;
};

/// The step of the first action in the row that is, or contains, `action`; -1 if there is none.
int step_of(const Row& row, const Action& action);

/// Follows the waiting ranks from `start` until a rank repeats, and returns the cycle. `position[rank]` is the slot of
/// a rank's next action, `need_of(rank)` what a blocked rank waits for.
template <typename NeedOf>
std::vector<Waiting> find_cycle(const Schedule& schedule, const std::vector<std::size_t>& position, RankId start,
                                NeedOf need_of) {
  std::vector<Waiting> chain;
  std::vector<int> seen_at(schedule.rows.size(), -1);
  RankId rank = start;
  while (seen_at[rank.index()] < 0) {
    seen_at[rank.index()] = static_cast<int>(chain.size());
    const Row& row = schedule.rows[rank.index()];
    const std::size_t here = position[rank.index()];
    const Need need = need_of(rank);
    chain.push_back({rank, static_cast<int>(here), row[here], need.rank,
                     step_of(schedule.rows[need.rank.index()], need.action), need.action});
    rank = need.rank;
  }
  chain.erase(chain.begin(), chain.begin() + seen_at[rank.index()]);
  return chain;
}

}  // namespace stagecraft::detail

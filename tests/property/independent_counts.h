#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "stagecraft/schedule/schedule.h"

/// Simple and slow versions of the library's algorithms.
namespace stagecraft::property {

using MessagesByPair = std::map<std::pair<RankId, RankId>, std::vector<Action>>;

/// The SENDs per directed pair of ranks, as the senders have them or (`received`) as the receivers' RECVs name them.
inline MessagesByPair messages_by_pair(const Schedule& schedule, bool received) {
  MessagesByPair messages;
  for (const Row& row : schedule.rows) {
    for (const Action& action : row) {
      if (!(received ? is_receive(action.kind()) : is_send(action.kind()))) continue;
      const Action send = received ? counterpart(action) : action;
      const RankId from = schedule.placement.rank_of(send.stage());
      messages[{from, schedule.placement.rank_of(peer_stage(send))}].push_back(send);
    }
  }
  return messages;
}

inline bool pairs_agree_on_order(const Schedule& schedule) {
  return messages_by_pair(schedule, false) == messages_by_pair(schedule, true);
}

inline bool receives_stand_before_use(const Schedule& schedule) {
  for (const Row& row : schedule.rows) {
    std::set<std::tuple<bool, StageId, MicrobatchId>> used;  // forward?
    for (const Action& action : row) {
      bool late = false;
      for_each_part(action, [&](const Action& part) {
        const bool forward = part.kind() == ActionKind::kForward || part.kind() == ActionKind::kRecvForward;
        const std::tuple key(forward, part.stage(), part.microbatch());
        if (is_receive(part.kind())) late |= used.contains(key);
        if (part.kind() == ActionKind::kForward || gives_input_gradient(part.kind())) used.insert(key);
      });
      if (late) return false;
    }
  }
  return true;
}

/// For each slot of the row, counts the activations whose life covers it.
inline int peak_of_row(const Row& row) {
  struct Life {
    std::size_t birth = 0;
    std::size_t death = 0;
  };
  std::map<std::pair<StageId, MicrobatchId>, Life> lives;
  for (std::size_t i = 0; i < row.size(); ++i) {
    for_each_part(row[i], [&](const Action& part) {
      Life& life = lives[{part.stage(), part.microbatch()}];
      if (part.kind() == ActionKind::kForward) life = {i, i};
      if (gives_weight_gradient(part.kind())) life.death = i;
    });
  }
  std::erase_if(lives, [&](const auto& entry) {
    bool computed = false;
    for_each_part(row[entry.second.birth], [&](const Action& part) {
      computed |= part == Action::forward(entry.first.first, entry.first.second);
    });
    return !computed;
  });
  int peak = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto covers = [&](const auto& entry) { return entry.second.birth <= i && i <= entry.second.death; };
    peak = std::max(peak, static_cast<int>(std::count_if(lives.begin(), lives.end(), covers)));
  }
  return peak;
}

}  // namespace stagecraft::property

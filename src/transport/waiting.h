#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/message.h"

/// Who waits for whom, and what every transport says when a wait ends badly.
namespace stagecraft {

/// After a wait that took too long, the other ranks are given only this to come to the end of the step: they have had
/// the whole timeout already.
inline constexpr Timeout kPatienceAfterTimeout{300};

TransportError no_such_rank(RankId rank, int ranks);

/// One thing that one thread of a rank waits for.
struct Wait {
  bool is_settling = false;  ///< For all others to come to the end of the step; otherwise for a message.
  RankId from;
  Tag tag;
  const Purpose* purpose = nullptr;  ///< Of the message, while it is waited for.
  bool is_main = true;               ///< The thread that settles steps waits, not one beside it.
};
/// "the activation of microbatch 3 from stage 1 to stage 2 from rank 0", "the end of the step".
std::string to_text(const Wait& wait);

/// What a rank says about itself to another one that has waited for long.
struct Standing {
  bool has_answered = true;
  bool is_resting = false;  ///< The thread that settles steps waits for another thread of its rank.
  std::vector<Wait> waits;
  std::string activity;  ///< "2F0", or empty outside of a schedule.
};
using StandingOf = std::function<const Standing&(RankId)>;

/// The error of rank `own`, whose wait has lasted `timeout`. Follows the waits from rank to rank until one does not
/// wait for any: it is the error's peer, and the text says how it was found. A rank waits for another as far as it
/// needs it to go on: what its threads beside the main one do counts where their message is waited for, or where the
/// main thread rests.
TimeoutError timeout_error(RankId own, int ranks, const Wait& wait, Timeout timeout, const StandingOf& standing_of);

}  // namespace stagecraft

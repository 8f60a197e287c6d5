#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/message.h"

/// Who waits for whom, and the errors of waits; the same for every transport.
namespace stagecraft {

/// How long `settle` waits after a timeout in the same step: the other ranks have already had the whole timeout.
inline constexpr Timeout kPatienceAfterTimeout{300};

TransportError no_such_rank(RankId rank, int ranks);

/// One thing that one thread of a rank waits for.
struct Wait {
  bool is_settling = false;  ///< For all others to come to the end of the step; otherwise for a message.
  RankId from;
  Tag tag;
  const Purpose* purpose = nullptr;  ///< Names the message in errors; valid during the wait.
  bool is_main = true;               ///< Whether the thread that settles steps waits.
};
/// "the activation of microbatch 3 from stage 1 to stage 2 from rank 0", "the end of the step".
std::string to_text(const Wait& wait);

/// A rank's answer to another rank that asks what it waits for (kAsk).
struct Standing {
  bool has_answered = true;
  bool is_resting = false;  ///< The thread that settles steps waits for another thread of its rank.
  std::vector<Wait> waits;
  std::string activity;  ///< "2F0", or empty outside of a schedule.
};
using StandingOf = std::function<const Standing&(RankId)>;

/// The error of rank `own`, whose wait has lasted `timeout`. Follows the waits from rank to rank until a rank waits for
/// none: the error's peer, and the text shows the path. The waits of a rank's other threads are followed only if they
/// are for the same group, or if the thread that settles steps is resting.
TimeoutError timeout_error(RankId own, int ranks, const Wait& wait, Timeout timeout, const StandingOf& standing_of);

}  // namespace stagecraft

#pragma once

#include <string>
#include <vector>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/transport.h"

/// What every transport says when a wait ends badly.
namespace stagecraft {

TransportError no_such_rank(RankId rank, int ranks);

/// "the activation of microbatch 3 from stage 1 to stage 2 from rank 0".
std::string message_text(RankId from, const Tag& tag);
/// "the end of the step on rank 1, 2".
std::string step_end_text(const std::vector<RankId>& missing);

TimeoutError message_timeout(RankId own, RankId from, const Tag& tag, Timeout timeout);
TimeoutError step_end_timeout(RankId own, const std::vector<RankId>& missing, Timeout timeout);

}  // namespace stagecraft

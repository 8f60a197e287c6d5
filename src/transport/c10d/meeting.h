#pragma once

#include <string>
#include <vector>

#include "stagecraft/core/ids.h"
#include "stagecraft/transport/message.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace stagecraft {

/// Ranks that tell each other a text by a store, which may still hold what ranks of an earlier start have said:
/// launchers start all ranks again when one has died, and the store stays. Only what all of them confirm counts.
///
/// Every rank calls, by a word of its own and its text. Rank 0 gathers what the ranks call, and writes it down as a
/// draft. Who finds its own word in a draft agrees. When all have agreed, rank 0 says that the draft holds; when a rank
/// calls something else meanwhile, it was not of this start, and there is a new draft.
///
/// Returns the texts of all ranks. Throws TransportError, which names a rank that is missing, after `timeout`.
std::vector<std::string> meet(c10d::Store& store, RankId rank, int ranks, const std::string& folder, Timeout timeout,
                              const std::string& own);

}  // namespace stagecraft

#pragma once

#include <optional>

#include "stagecraft/passes/verify.h"

/// Replays of a schedule whose structure is sound, one per model of communication. Null when every rank reaches its
/// end.
namespace stagecraft::detail {

/// Nothing blocks but a compute whose input is not yet sent (or, without communication, not yet computed).
std::optional<Refusal> check_tagged(const Schedule& schedule, bool communicates);

/// The n-th SEND from one rank to another must be the counterpart of the n-th RECV there.
std::optional<Refusal> check_pair_order(const Schedule& schedule);

/// Every SEND and RECV blocks until its counterpart is reached. Success implies the other two models.
std::optional<Refusal> check_rendezvous(const Schedule& schedule);

}  // namespace stagecraft::detail

#pragma once

#include <optional>

#include "stagecraft/passes/verify.h"

/// Replays of a schedule that has passed check_structure, one per model of communication. They return null when every
/// rank reaches its end.
namespace stagecraft::detail {

/// Only a compute blocks, until its input is sent (without communication: until its input is computed).
std::optional<Refusal> check_tagged(const Schedule& schedule, bool communicates);

/// The n-th SEND from one rank to another must match the n-th RECV there.
std::optional<Refusal> check_pair_order(const Schedule& schedule);

/// Every SEND and RECV blocks until its counterpart is reached. Success implies the other two models.
std::optional<Refusal> check_rendezvous(const Schedule& schedule);

}  // namespace stagecraft::detail

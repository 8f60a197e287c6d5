#pragma once

#include <cstdint>
#include <memory>

#include "stagecraft/core/ids.h"

/// Randomness that does not depend on the schedule.
namespace stagecraft {

/// While it lives, random operations of this thread (dropout, rand, bernoulli, ...) draw from a stream of their own
/// that is fixed by seed, stage, microbatch and step, instead of from the global generator: the same numbers whatever
/// the order of microbatches, the number of ranks, or what other threads draw. The stream is set up by the first draw,
/// so a stage without randomness pays nothing. Scopes nest; the innermost counts.
///
/// Operations that draw on a CPU are covered one by one. On another device, the device's default generator is seeded at
/// the first draw.
class RandomScope {
 public:
  RandomScope(std::uint64_t seed, StageId stage, MicrobatchId microbatch, std::uint64_t step = 0);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  struct Streams;
  /// The streams of the innermost scope of this thread, made at the first call; null without a scope.
  static Streams* current();

 private:
  std::uint64_t seed_;
  RandomScope* outer_;
  bool was_redirected_;
  std::unique_ptr<Streams> streams_;
};

}  // namespace stagecraft

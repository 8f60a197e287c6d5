#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "stagecraft/core/ids.h"

/// Randomness that does not depend on the schedule.
namespace stagecraft {

/// While it lives, random operations of this thread (dropout, rand, bernoulli, ...) draw from streams of their own
/// instead of from the global generator. A stream is fixed by seed, step, microbatch and the innermost RandomLayer, or
/// the stage where there is none: the same numbers whatever the order of microbatches, the number of ranks, or what
/// other threads draw. A stream is set up by its first draw, so a stage without randomness pays nothing. Scopes nest;
/// the innermost counts.
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
  /// The streams of the innermost scope and layer of this thread, made at the first call; null without a scope.
  static Streams* current();

 private:
  friend class RandomLayer;

  std::uint64_t seed_;
  std::uint64_t layer_;
  RandomScope* outer_;
  bool was_redirected_;
  std::vector<std::pair<std::uint64_t, std::unique_ptr<Streams>>> streams_;  // by layer
};

/// While it lives, random operations of this thread draw from the stream of one layer of the model instead of that of
/// the stage: the same numbers however the model is cut into stages. `split` and exported models do this for every
/// layer; a stage of your own that is to draw the same under any cut puts one around each of its layers. Without a
/// RandomScope it does nothing. Leaving a layer and coming back to it in one forward goes on in its stream.
class RandomLayer {
 public:
  /// By its position in the whole model.
  explicit RandomLayer(std::int64_t position);
  /// By its name in the whole model.
  explicit RandomLayer(std::string_view name);
  ~RandomLayer();
  RandomLayer(const RandomLayer&) = delete;
  RandomLayer& operator=(const RandomLayer&) = delete;

 private:
  RandomScope* scope_;
  std::uint64_t before_ = 0;
};

}  // namespace stagecraft

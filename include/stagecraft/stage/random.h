#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "stagecraft/core/ids.h"

/// Random numbers that do not depend on the schedule.
namespace stagecraft {

/// While it lives, random operations of this thread (dropout, rand, bernoulli, ...) draw from their own streams instead
/// of the global generator. A stream is fixed by seed, step, microbatch and the innermost RandomLayer (or the stage, if
/// there is none): it does not depend on the order of microbatches, the number of ranks, or other threads. It is
/// created at the first draw, so a stage without randomness pays nothing. Scopes nest; the innermost counts.
///
/// An operation that takes a generator is given the stream's. One that takes none, on a device other than the CPU, runs
/// with the device's default generator, which has the stream's state meanwhile.
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

/// While it lives, random operations of this thread draw from the stream of one layer of the model instead of the
/// stage's: the same numbers however the model is cut into stages. `split` and exported models do this for every layer;
/// in a stage of your own, put one around each layer. Without a RandomScope it does nothing. A layer that is left and
/// entered again in one forward continues its stream.
class RandomLayer {
 public:
  /// The layer by its position in the whole model.
  explicit RandomLayer(std::int64_t position);
  /// The layer by its name in the whole model.
  explicit RandomLayer(std::string_view name);
  ~RandomLayer();
  RandomLayer(const RandomLayer&) = delete;
  RandomLayer& operator=(const RandomLayer&) = delete;

 private:
  RandomScope* scope_;
  std::uint64_t before_ = 0;
};

}  // namespace stagecraft

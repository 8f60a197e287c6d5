#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "stagecraft/core/ids.h"
#include "stagecraft/transport/also_in_backwards.h"

/// Random numbers that do not depend on the schedule.
namespace stagecraft {

/// What fixes a stream of random numbers within a step.
struct RandomStream {
  std::int64_t microbatch = 0;
  std::uint64_t layer = 0;  ///< A hash: of the layer, or of the stage.

  bool operator==(const RandomStream&) const = default;
};
/// The seed of a stream in a step; `seed` is the pipeline's.
std::uint64_t seed_of(const RandomStream& stream, std::uint64_t seed, std::uint64_t step);

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

  /// Where the streams stood that a segment of the forward continued, when it first drew from each. A segment that is
  /// computed again begins with them.
  struct Continued {
    struct Position {
      c10::Device device;
      at::Tensor state;          ///< Of the generator; undefined while a graph is captured.
      std::uint64_t offset = 0;  ///< While one is: see GraphRandom.
    };
    std::uint64_t layer;
    std::vector<Position> positions;
  };
  /// From now on another segment draws, which may be computed again: an operation that draws from a generator of the
  /// model's own throws InvalidArgument, because it would draw other numbers then.
  void begin_segment();
  /// What the segment continued.
  [[nodiscard]] std::vector<Continued> end_segment();
  /// Continues the streams of a segment that is computed again.
  void restore(const std::vector<Continued>& continued);

  struct Streams;
  /// The streams of the innermost scope and layer of this thread, made at the first call; null without a scope.
  static Streams* current();
  /// Called when an operation draws from a generator of the model's own.
  static void check_own_generator();

 private:
  friend class RandomLayer;

  void note_continued(Streams& streams);
  [[nodiscard]] std::unique_ptr<Streams> new_streams(std::uint64_t layer) const;

  std::int64_t microbatch_;
  std::uint64_t seed_;
  std::uint64_t layer_;
  int segment_ = 0;  // counted from 1; 0: none has begun
  bool may_repeat_ = false;
  std::vector<Continued> continued_;
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

class NoRandom;

/// While it lives, random operations of this thread draw from the global generators, also within a RandomScope: for
/// modules that save and restore the state of the global generators themselves.
class GlobalRandom {
 public:
  GlobalRandom();
  ~GlobalRandom();
  GlobalRandom(const GlobalRandom&) = delete;
  GlobalRandom& operator=(const GlobalRandom&) = delete;

 private:
  bool was_redirected_;
  RandomScope* outer_;
  AlsoInBackwards<const char, NoRandom> allowed_;
};

/// While it lives, random operations of this thread that draw from the default generator of a device other than the CPU
/// wait for those of other threads that draw within a RandomScope: these have the generator's state exchanged
/// meanwhile. For ranks that are threads.
class RandomTurns {
 public:
  RandomTurns();
  ~RandomTurns();
  RandomTurns(const RandomTurns&) = delete;
  RandomTurns& operator=(const RandomTurns&) = delete;

 private:
  bool took_turns_;
  bool was_redirected_;
};

/// Makes the generators of streams while a step is captured as a graph. Kernels of the graph read the seed when it is
/// replayed.
class GraphRandom {
 public:
  virtual ~GraphRandom() = default;
  /// Where the graph computes.
  [[nodiscard]] virtual c10::Device device() const = 0;
  /// A generator on that device that begins at `offset` of the stream.
  virtual at::Generator generator(const RandomStream& stream, std::uint64_t offset) = 0;
  /// How far a generator has come.
  [[nodiscard]] virtual std::uint64_t offset_of(const at::Generator& generator) const = 0;
};

/// While it lives, RandomScopes of this thread draw from the generators of `random`. Whatever a graph would freeze,
/// such as random numbers made on another device, throws InvalidArgument, also in its backwards.
class GraphRandomScope {
 public:
  explicit GraphRandomScope(GraphRandom& random);
  ~GraphRandomScope();
  GraphRandomScope(const GraphRandomScope&) = delete;
  GraphRandomScope& operator=(const GraphRandomScope&) = delete;

 private:
  AlsoInBackwards<GraphRandom> random_;
  bool was_redirected_;
};

/// Held while a default generator of a device other than the CPU is not in its own state.
std::mutex& default_generators();

/// While it lives, random operations of this thread and of its backwards without a generator of their own throw
/// InvalidArgument with the text `why`, which must outlive it. It ends what a RandomScope around it does; one within it
/// may draw.
class NoRandom {
 public:
  explicit NoRandom(const char* why);
  ~NoRandom();
  NoRandom(const NoRandom&) = delete;
  NoRandom& operator=(const NoRandom&) = delete;

 private:
  AlsoInBackwards<const char, NoRandom> why_;
  RandomScope* outer_;
  bool was_redirected_;
};

}  // namespace stagecraft

#include <algorithm>
#include <array>
#include <cctype>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/generator.h"

// One line per schedule; the file of the same name defines `const Generator <name>`.
#define STAGECRAFT_FOR_EACH_GENERATOR(X) \
  X(forward_only)                        \
  X(gpipe)                               \
  X(one_f_one_b)                         \
  X(eager_1f1b)                          \
  X(zb_h1)                               \
  X(zb_h2)                               \
  X(looped_bfs)                          \
  X(interleaved_1f1b)                    \
  X(interleaved_zero_bubble)             \
  X(zbv_zero_bubble)                     \
  X(v_half)                              \
  X(v_min)                               \
  X(one_f_one_b_v)                       \
  X(dual_pipe_v)

namespace stagecraft {
namespace generator {
#define STAGECRAFT_DECLARE(name) extern const Generator name;
STAGECRAFT_FOR_EACH_GENERATOR(STAGECRAFT_DECLARE)
#undef STAGECRAFT_DECLARE
}  // namespace generator

namespace {

constexpr std::array kGenerators = {
#define STAGECRAFT_POINTER(name) &generator::name,
    STAGECRAFT_FOR_EACH_GENERATOR(STAGECRAFT_POINTER)
#undef STAGECRAFT_POINTER
};

/// "ZB-H1", "zb_h1" and "zbh1" are the same name.
std::string folded(std::string_view name) {
  std::string key;
  for (const char c : name) {
    if (c != '-' && c != '_') key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return key;
}

void check_at_least_one(std::string_view what, int value) {
  if (value >= 1) return;
  throw InvalidArgument(std::string(what) + " must be at least 1, got " + std::to_string(value));
}

void check_stages_per_rank(const Generator& generator, int stages_per_rank) {
  if (stages_per_rank >= generator.min_stages_per_rank && stages_per_rank <= generator.max_stages_per_rank) return;
  // The generator takes any number of stages; check_size refuses one above kMaxStage.
  if (generator.max_stages_per_rank == kMaxStage && stages_per_rank > kMaxStage) return;
  const std::string name(generator.name);
  const std::string remedy = generator.max_stages_per_rank == 1
                                 ? "; for more use Interleaved1F1B, LoopedBFS or InterleavedZeroBubble"
                                 : "; for any other number use Interleaved1F1B, LoopedBFS or InterleavedZeroBubble";
  throw InvalidArgument(name + " has " + std::to_string(generator.min_stages_per_rank) +
                        (generator.min_stages_per_rank == 1 ? " stage" : " stages") + " per rank, got " +
                        std::to_string(stages_per_rank) + remedy);
}

/// Throws unless F, I and W of every stage and microbatch, and as many idle slots again, fit into kMaxSlots.
void check_size(const Shape& shape) {
  const double slots = 6.0 * shape.ranks * static_cast<double>(shape.stages_per_rank) * shape.microbatches;
  const double fill = 4.0 * shape.ranks * static_cast<double>(shape.ranks) * shape.stages_per_rank;
  const double stages = static_cast<double>(shape.ranks) * shape.stages_per_rank;
  if (slots + fill <= static_cast<double>(kMaxSlots) && stages <= kMaxStage && shape.ranks <= kMaxRanks) return;
  throw InvalidArgument("a schedule of " + std::to_string(shape.ranks) + " ranks, " +
                        std::to_string(shape.stages_per_rank) + " stages per rank and " +
                        std::to_string(shape.microbatches) + " microbatches could exceed the limit of " +
                        std::to_string(kMaxSlots) + " slots: use fewer ranks, stages per rank or microbatches");
}

}  // namespace

std::span<const Generator* const> generators() { return kGenerators; }

const Generator& find_generator(std::string_view name) {
  const std::string key = folded(name);
  for (const Generator* generator : kGenerators) {
    if (folded(generator->name) == key) return *generator;
  }
  std::string known;
  for (const Generator* generator : kGenerators) {
    known += (known.empty() ? "" : ", ") + std::string(generator->name);
  }
  throw InvalidArgument("unknown schedule '" + std::string(name) + "': the known ones are " + known);
}

Schedule make_schedule(std::string_view name, const Shape& shape) {
  const Generator& generator = find_generator(name);
  Shape resolved = shape;
  if (resolved.stages_per_rank == 0) resolved.stages_per_rank = generator.default_stages_per_rank;
  check_at_least_one("the number of ranks", resolved.ranks);
  check_at_least_one("the number of stages per rank", resolved.stages_per_rank);
  check_at_least_one("the number of microbatches", resolved.microbatches);
  check_stages_per_rank(generator, resolved.stages_per_rank);
  if (resolved.memory_limit < 0) {
    throw InvalidArgument("the memory limit must be at least 1 microbatch, or 0 for none, got " +
                          std::to_string(resolved.memory_limit));
  }
  if (resolved.memory_limit > 0 && !generator.takes_memory_limit) {
    throw InvalidArgument(std::string(generator.name) + " takes no memory limit, got " +
                          std::to_string(resolved.memory_limit) + ": use Eager1F1B, or leave the limit out");
  }
  check_size(resolved);
  Schedule schedule = generator.make(resolved);
  schedule.name = generator.name;
  for (Row& row : schedule.rows) {
    if (row.capacity() > row.size() + row.size() / 8) row.shrink_to_fit();  // saving less is not worth a copy
  }
  return schedule;
}

}  // namespace stagecraft

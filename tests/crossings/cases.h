#pragma once

#include <array>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layered_model.h"
#include "src/runtime/graph_device.h"
#include "stagecraft/core/random.h"
#include "support/schedule_names.h"

/// Random combinations of features.
namespace stagecraft::crossings {

/// The layout of a model while it trains.
struct Layout {
  std::string schedule;
  int ranks = 1;
  int stages_per_rank = 1;
  int microbatches = 1;
  int replicas = 1;
  Shard shard = Shard::kNone;

  [[nodiscard]] int stages() const { return ranks * stages_per_rank; }
  [[nodiscard]] std::string text() const {
    return schedule + " on " + std::to_string(ranks) + " ranks x " + std::to_string(stages_per_rank) + " stages, " +
           std::to_string(replicas) + " replicas (" +
           std::array{"whole", "shard optimizer", "shard gradients",
                      "shard parameters"}[static_cast<std::size_t>(shard)] +
           "), " + std::to_string(microbatches) + " microbatches each";
  }
};

struct Case {
  std::uint64_t seed = 0;
  Traits traits;
  std::vector<Layout> layouts;  ///< One after the other; a checkpoint goes from one to the next.
  std::int64_t rows = 8;
  bool ragged = false;   ///< Every third batch has a row more.
  int accumulated = 1;   ///< Steps per step of the optimizer.
  int updates = 2;       ///< Steps of the optimizer per layout.
  bool records = false;  ///< The timelines of some steps.
  bool graph = false;    ///< Steps are captured; they must give the bits of eager steps.
  int lanes = 0;         ///< Of the graph; 0: as many as it likes.
  bool adam = false;
  bool clips = false;  ///< The norm of the gradients.
  /// Modules compute in float32 what the optimizer updates in float64; or the modules are float32 from the beginning.
  enum class Mixed { kNot, kCompute, kParameters } mixed = Mixed::kNot;
  enum class Recomputed { kNothing, kStage, kLayers, kSomeLayers } recomputed = Recomputed::kNothing;
  /// Layout, step in it, stage and microbatch that fail once; by an exception of any type.
  struct Failure {
    int layout, step, stage, microbatch;
    bool is_std;
  };
  std::optional<Failure> failure;

  [[nodiscard]] bool is_mixed() const { return mixed != Mixed::kNot; }
  [[nodiscard]] std::int64_t rows_in(int step) const { return rows + (ragged && step % 3 == 2 ? 1 : 0); }
  [[nodiscard]] int steps_per_layout() const { return accumulated * updates; }
  [[nodiscard]] std::string text() const {
    std::string all = "seed " + std::to_string(seed) + ": ";
    for (const Layout& layout : layouts) all += (&layout == layouts.data() ? "" : ", then ") + layout.text();
    all += "; " + std::to_string(traits.layers) + " layers of " + c10::toString(traits.type) + ", " +
           std::to_string(rows) + " rows, " + std::to_string(accumulated) + " accumulated";
    for (const auto& [has, name] : {std::pair(traits.dropout, ", dropout"),
                                    {traits.skip, ", skip"},
                                    {traits.tied, ", tied"},
                                    {traits.strided, ", strided"},
                                    {traits.frozen, ", frozen"},
                                    {traits.in_place, ", in place"},
                                    {traits.extra, ", auxiliary loss"},
                                    {traits.ignored, ", ignored targets"},
                                    {ragged, ", ragged"},
                                    {adam, ", AdamW"},
                                    {clips, ", clipped"},
                                    {records, ", recorded"},
                                    {graph, ", graph"},
                                    {lanes == 1, ", one lane"},
                                    {mixed == Mixed::kCompute, ", computed in float32"},
                                    {mixed == Mixed::kParameters, ", masters in float64"},
                                    {recomputed == Recomputed::kStage, ", stages recomputed"},
                                    {recomputed == Recomputed::kLayers, ", layers recomputed"},
                                    {recomputed == Recomputed::kSomeLayers, ", some layers recomputed"}}) {
      if (has) all += name;
    }
    if (failure) {
      all += ", fails once in layout " + std::to_string(failure->layout) + ", step " + std::to_string(failure->step) +
             ", stage " + std::to_string(failure->stage) + ", microbatch " + std::to_string(failure->microbatch) +
             (failure->is_std ? "" : " by an int");
    }
    return all;
  }
};

/// Whether STAGECRAFT_CROSSINGS_WITHOUT names a feature: to find out which one a failure is about.
inline bool is_left_out(const std::string& feature) {
  const char* text = std::getenv("STAGECRAFT_CROSSINGS_WITHOUT");
  return text != nullptr && (',' + std::string(text) + ',').find(',' + feature + ',') != std::string::npos;
}

/// The same case with fewer features.
inline void leave_out(Case& drawn) {
  Traits& traits = drawn.traits;
  for (const auto& [name, flag] : std::initializer_list<std::pair<const char*, bool*>>{{"dropout", &traits.dropout},
                                                                                       {"skip", &traits.skip},
                                                                                       {"tied", &traits.tied},
                                                                                       {"strided", &traits.strided},
                                                                                       {"frozen", &traits.frozen},
                                                                                       {"in_place", &traits.in_place},
                                                                                       {"extra", &traits.extra},
                                                                                       {"ignored", &traits.ignored},
                                                                                       {"ragged", &drawn.ragged},
                                                                                       {"adam", &drawn.adam},
                                                                                       {"clips", &drawn.clips},
                                                                                       {"records", &drawn.records},
                                                                                       {"graph", &drawn.graph}}) {
    if (is_left_out(name)) *flag = false;
  }
  if (is_left_out("mixed")) drawn.mixed = Case::Mixed::kNot;
  if (is_left_out("recompute")) drawn.recomputed = Case::Recomputed::kNothing;
  if (is_left_out("accumulate")) drawn.accumulated = 1;
  if (is_left_out("failure")) drawn.failure.reset();
  if (is_left_out("first_layout") && drawn.layouts.size() > 1) drawn.layouts.erase(drawn.layouts.begin());
  for (Layout& layout : drawn.layouts) {
    if (is_left_out("shard")) layout.shard = Shard::kNone;
  }
}

/// Draws one number after the other.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) { random_.seed(seed); }
  int up_to(int most) { return static_cast<int>(random_.next() % static_cast<std::uint64_t>(most + 1)); }
  int between(int least, int most) { return least + up_to(most - least); }
  bool one_in(int chances) { return up_to(chances - 1) == 0; }

 private:
  Random random_;
};

/// `world`: ranks in all, or 0 for any.
inline Layout draw_layout(Dice& dice, int world) {
  const std::vector<std::string> names = training_schedules();
  while (true) {
    Layout layout;
    layout.replicas = dice.between(1, 2);
    if (world == 0) {
      layout.ranks = dice.between(1, 4);
      if (layout.replicas == 2 && layout.ranks == 4) continue;  // eight threads on two cores prove no more
    } else {
      if (world % layout.replicas != 0) continue;
      layout.ranks = world / layout.replicas;
    }
    const Generator& generator =
        find_generator(names[static_cast<std::size_t>(dice.up_to(static_cast<int>(names.size()) - 1))]);
    layout.schedule = generator.name;
    layout.stages_per_rank = dice.between(generator.min_stages_per_rank, std::min(3, generator.max_stages_per_rank));
    layout.microbatches = dice.between(1, 5);
    if (layout.replicas > 1) layout.shard = static_cast<Shard>(dice.up_to(3));
    return layout;
  }
}

inline Case draw_case(std::uint64_t seed, int world) {
  Dice dice(seed);
  Case drawn;
  drawn.seed = seed;
  drawn.layouts.push_back(draw_layout(dice, world));
  if (dice.one_in(3)) drawn.layouts.push_back(draw_layout(dice, world));
  int stages = 1;
  int parts = 1;
  for (Layout& layout : drawn.layouts) {
    stages = std::max(stages, layout.stages());
    parts = std::max(parts, layout.microbatches * layout.replicas);
  }
  Traits& traits = drawn.traits;
  traits.layers = std::max(stages, 2) + dice.up_to(3);
  constexpr std::array kTypes = {at::kDouble, at::kFloat, at::kComplexDouble};
  // A safetensors file has no complex numbers of 128 bits, so those are not resumed.
  traits.type = kTypes[static_cast<std::size_t>(dice.up_to(drawn.layouts.size() > 1 ? 1 : 2))];
  traits.dropout = dice.one_in(2);
  traits.skip = dice.one_in(2);
  traits.tied = dice.one_in(2);
  traits.strided = dice.one_in(2);
  traits.frozen = dice.one_in(4);
  traits.in_place = dice.one_in(3);
  traits.extra = dice.one_in(3);
  traits.ignored = dice.one_in(2);
  drawn.rows = parts + dice.up_to(2 * parts);
  drawn.accumulated = dice.between(1, 3);
  drawn.adam = dice.one_in(2);
  drawn.clips = dice.one_in(2);
  if (!traits.is_complex() && dice.one_in(3)) {
    drawn.mixed = dice.one_in(2) ? Case::Mixed::kCompute : Case::Mixed::kParameters;
    traits.type = drawn.mixed == Case::Mixed::kCompute ? at::kDouble : at::kFloat;
  }
  // An auxiliary loss may come from any layer, so layers are not recomputed separately.
  drawn.recomputed = static_cast<Case::Recomputed>(dice.up_to(traits.extra ? 1 : 3));
  if (dice.one_in(3)) {
    const int which = dice.up_to(static_cast<int>(drawn.layouts.size()) - 1);
    const Layout& layout = drawn.layouts[static_cast<std::size_t>(which)];
    drawn.failure = {which, dice.up_to(drawn.steps_per_layout() - 1), dice.up_to(layout.stages() - 1),
                     dice.up_to(layout.microbatches - 1), dice.one_in(2)};
  }
  drawn.records = dice.one_in(3);
  if (make_graph_device(device())) {
    drawn.updates = dice.between(2, 5);
    drawn.graph = !dice.one_in(4);
    if (drawn.graph) drawn.lanes = dice.one_in(3) ? 1 : 0;
  }
  drawn.ragged = dice.one_in(3);
  leave_out(drawn);
  return drawn;
}

}  // namespace stagecraft::crossings

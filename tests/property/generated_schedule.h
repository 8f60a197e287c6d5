#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "stagecraft/schedule/generator.h"

/// Any generator with any shape that it accepts.
namespace stagecraft::property {

struct GeneratorCall {
  std::string name;
  Shape shape;
};

inline void showValue(const GeneratorCall& call, std::ostream& out) {
  out << call.name << ", " << call.shape.ranks << " ranks, " << call.shape.stages_per_rank << " stages per rank, "
      << call.shape.microbatches << " microbatches, memory limit " << call.shape.memory_limit;
}

inline Schedule generated(const GeneratorCall& call) { return make_schedule(call.name, call.shape); }

/// Uniform in [low, high] in every run, shrinking towards `low`.
inline rc::Gen<int> uniform(int low, int high) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}

inline rc::Gen<GeneratorCall> generator_calls(int most_ranks, int most_microbatches) {
  const auto shape_for = [=](const Generator* generator) {
    const int most_stages = std::min(generator->max_stages_per_rank, 4);
    return rc::gen::map(rc::gen::tuple(uniform(1, most_ranks), uniform(generator->min_stages_per_rank, most_stages),
                                       uniform(1, most_microbatches),
                                       uniform(0, generator->takes_memory_limit ? most_microbatches : 0)),
                        [=](const std::tuple<int, int, int, int>& values) {
                          const auto& [ranks, stages, microbatches, limit] = values;
                          return GeneratorCall{std::string(generator->name), {ranks, stages, microbatches, limit}};
                        });
  };
  return rc::gen::mapcat(rc::gen::elementOf(std::vector(generators().begin(), generators().end())), shape_for);
}

}  // namespace stagecraft::property

#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// One small value per (stage, microbatch) in a flat array: the state that passes, verification and simulation keep.
template <typename Value>
class StageMicrobatchTable {
 public:
  explicit StageMicrobatchTable(const Schedule& schedule, Value value = {})
      : microbatches_(static_cast<std::size_t>(schedule.microbatches)),
        values_(static_cast<std::size_t>(schedule.stages()) * microbatches_, value) {}

  Value& operator()(StageId stage, MicrobatchId microbatch) { return values_[at(stage, microbatch)]; }
  Value operator()(StageId stage, MicrobatchId microbatch) const { return values_[at(stage, microbatch)]; }

 private:
  [[nodiscard]] std::size_t at(StageId stage, MicrobatchId microbatch) const {
    return stage.index() * microbatches_ + microbatch.index();
  }

  std::size_t microbatches_;
  std::vector<Value> values_;
};

}  // namespace stagecraft

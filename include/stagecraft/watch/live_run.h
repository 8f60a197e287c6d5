#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "stagecraft/live/live_page.h"
#include "stagecraft/runtime/pipeline.h"

/// A training run on a page: loss, speed, the ranks' idle time and memory, the chart of the last recorded step.
namespace stagecraft {

struct LiveRunOptions {
  LiveOptions page;
  std::string title = "Training";
  std::int64_t steps = 0;  ///< How many the run will take; 0: not known.
  /// Whether the caller has the pipeline record every step anyway. Otherwise it records only the steps that are shown.
  bool records_always = false;
};

/// Per second; 0: not known.
struct LiveSpeed {
  double rows = 0;
  double tokens = 0;
};

/// All ranks make one and call it after each step; rank 0 of the world serves the page. About twice a second the ranks
/// exchange what they measured, in the same step on all ranks, and the last step is recorded; the other steps cost
/// nothing. On a GPU steps are not recorded, since that would make them wait for the device.
class LiveRun {
 public:
  /// Throws as LivePage does, on all ranks.
  LiveRun(World& world, Pipeline& pipeline, const LiveRunOptions& options);
  ~LiveRun();
  LiveRun(const LiveRun&) = delete;
  LiveRun& operator=(const LiveRun&) = delete;

  /// On rank 0: the page. Null on other ranks.
  [[nodiscard]] const LivePage* page() const;

  /// Call on all ranks after each update. Only what rank 0 gives counts.
  void end_step(std::int64_t step, double loss, const LiveSpeed& speed = {});

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft

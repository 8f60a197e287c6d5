#pragma once

#include <functional>
#include <memory>
#include <string>

#include "stagecraft/runtime/auto_schedule.h"
#include "stagecraft/runtime/world.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/timeline.h"

namespace stagecraft {

/// Says which schedule the next step runs, from what the steps before took. Every rank of the world has one, and they
/// do the same.
class Steering {
 public:
  virtual ~Steering() = default;

  /// Number of the schedule that the next step runs, from 0 on.
  [[nodiscard]] virtual std::size_t next() const = 0;
  /// Compute-only; all have the placement and the microbatches of the first.
  [[nodiscard]] virtual const Schedule& schedule(std::size_t number) const = 0;
  /// Whether the schedule stays what it is from now on.
  [[nodiscard]] virtual bool is_decided() const = 0;
  /// Whether the next step is to be recorded.
  [[nodiscard]] virtual bool records() const = 0;
  /// After a training step that all ranks have ended well: what it recorded here, and how long it took here. All ranks
  /// call it. When it throws, it does so on all ranks.
  virtual void after_step(const Timeline& timeline, double seconds) = 0;
};

/// Makes the steering of a pipeline with schedule "auto"; `starting` is compute-only.
using MakeSteering = std::function<std::unique_ptr<Steering>(World&, const AutoOptions&, const Schedule& starting,
                                                             const std::string& passes)>;
/// From now on pipelines know "auto".
void register_steering(MakeSteering make);

}  // namespace stagecraft

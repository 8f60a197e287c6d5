#pragma once

#include <functional>
#include <memory>
#include <string>

#include "stagecraft/runtime/auto_schedule.h"
#include "stagecraft/runtime/world.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/timeline.h"

namespace stagecraft {

/// Chooses the schedule of the next step from the times of the steps before. Every rank of the world has one, and all
/// choose the same.
class Steering {
 public:
  virtual ~Steering() = default;

  /// Number of the schedule that the next step runs, from 0 on.
  [[nodiscard]] virtual std::size_t next() const = 0;
  /// A compute-only schedule; all have the placement and the microbatches of the first.
  [[nodiscard]] virtual const Schedule& schedule(std::size_t number) const = 0;
  /// Whether the choice is final.
  [[nodiscard]] virtual bool is_decided() const = 0;
  /// Whether the next step is to be recorded.
  [[nodiscard]] virtual bool records() const = 0;
  /// Called on all ranks after a training step that succeeded on all: this rank's timeline and time of the step. If it
  /// throws, it throws on all ranks.
  virtual void after_step(const Timeline& timeline, double seconds) = 0;
};

/// Makes the steering of a pipeline with schedule "auto"; `starting` is compute-only. The first `warm_ups` steps of a
/// schedule take longer than later ones.
using MakeSteering = std::function<std::unique_ptr<Steering>(World&, const AutoOptions&, const Schedule& starting,
                                                             const std::string& passes, int warm_ups)>;
/// Makes "auto" known to pipelines.
void register_steering(MakeSteering make);
/// Throws InvalidArgument if nothing is registered.
std::unique_ptr<Steering> make_steering(World& world, const AutoOptions& options, const Schedule& starting,
                                        const std::string& passes, int warm_ups);

}  // namespace stagecraft

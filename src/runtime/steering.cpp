#include "stagecraft/runtime/steering.h"

#include <mutex>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

struct Registered {
  std::mutex mutex;
  MakeSteering make;
};
Registered& registered_steering() {
  static Registered registered;
  return registered;
}

}  // namespace

void register_steering(MakeSteering make) {
  Registered& registered = registered_steering();
  const std::lock_guard lock(registered.mutex);
  registered.make = std::move(make);
}

std::unique_ptr<Steering> make_steering(World& world, const AutoOptions& options, const Schedule& starting,
                                        const std::string& passes, int warm_ups) {
  const MakeSteering make = [] {
    Registered& registered = registered_steering();
    const std::lock_guard lock(registered.mutex);
    return registered.make;
  }();
  if (make) return make(world, options, starting, passes, warm_ups);
  throw InvalidArgument(
      "the schedule \"auto\" needs the planner: include stagecraft/automatic/automatic.h (stagecraft.h does) and link "
      "stagecraft::stagecraft");
}

}  // namespace stagecraft

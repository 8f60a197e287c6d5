#include "process_group_world.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <mutex>
#include <thread>

#include "errors.h"
#include "stagecraft/runtime/rank_scope.h"
#include "stagecraft/transport/c10d.h"
#include "worlds.h"

namespace stagecraft::python {
namespace {

/// How long a rank waits for the others when its process ends: a process that goes before they know of it looks lost.
constexpr Timeout kFarewell{1000};
constexpr Timeout kPatience{5000};

/// Ends a wait of Python's main thread when a signal has come, by what its handler raises. At most once in a step:
/// otherwise a second Ctrl-C would end the wait for the end of the step, and with it the pipeline.
class Signals {
 public:
  void check() {
    if (std::this_thread::get_id() != main_thread_ || has_raised_) return;
    in_python([&] {
      if (PyErr_CheckSignals() == 0) return;
      has_raised_ = true;
      throw py::error_already_set();
    });
  }
  void begin_step() { has_raised_ = false; }

 private:
  std::thread::id main_thread_ = std::this_thread::get_id();  // worlds that are made elsewhere take no signals
  bool has_raised_ = false;                                   // of the main thread alone
};

class ProcessGroupWorld : public WorldBox {
 public:
  ProcessGroupWorld(const c10::intrusive_ptr<::c10d::ProcessGroup>& group, int replicas, Timeout timeout,
                    at::Device device)
      : WorldBox(nullptr), activity_(std::make_shared<Activity>()), signals_(std::make_shared<Signals>()) {
    { const RankScope once(device, at::get_num_threads()); }  // makes the allocator keep memory between microbatches
    connection_.emplace(RankId(group->getRank()), group->getSize(), exchange_by(group, device),
                        SocketConnection::Options{device, [activity = activity_] { return activity->text(); },
                                                  [signals = signals_] { signals->check(); }, timeout});
    own_ = std::make_unique<World>(connection_->transport(), device, timeout, replicas, activity_);
    world_ = own_.get();
    const std::lock_guard lock(all().mutex);
    all().worlds.push_back(this);
  }
  ~ProcessGroupWorld() override {
    std::optional<py::gil_scoped_release> no_gil;
    if (PyGILState_Check() != 0) no_gil.emplace();
    close();
    {
      const std::lock_guard lock(all().mutex);
      std::erase(all().worlds, this);
    }
    own_.reset();
    connection_.reset();
  }

  void begin_step() override { signals_->begin_step(); }

  static void close_all() {
    std::vector<ProcessGroupWorld*> worlds;
    {
      const std::lock_guard lock(all().mutex);
      worlds = all().worlds;
    }
    for (ProcessGroupWorld* world : worlds) world->close();
    for (ProcessGroupWorld* world : worlds) world->connection_->wait_for_others(kFarewell);
  }

 private:
  struct All {
    std::mutex mutex;
    std::vector<ProcessGroupWorld*> worlds;
  };
  static All& all() {
    static All& known = *new All;  // never destroyed: worlds may be, at the end of the process
    return known;
  }

  void leave(const std::optional<std::string>& failure) override { connection_->leave(failure, kPatience); }

  std::shared_ptr<Activity> activity_;
  std::shared_ptr<Signals> signals_;
  std::optional<SocketConnection> connection_;
  std::unique_ptr<World> own_;
};

}  // namespace

void bind_process_groups(py::module_& module) {
  module.def(
      "process_group_world",
      [](const c10::intrusive_ptr<::c10d::ProcessGroup>& group, int replicas, double timeout,
         const at::Device& device) -> std::shared_ptr<WorldBox> {
        const py::gil_scoped_release no_gil;
        return std::make_shared<ProcessGroupWorld>(group, replicas, Timeout(static_cast<std::int64_t>(timeout * 1000)),
                                                   device);
      },
      py::arg("group"), py::arg("replicas"), py::arg("timeout"), py::arg("device"));
  // For the end of the process, while Python still runs.
  module.def("close_all_worlds", &ProcessGroupWorld::close_all, py::call_guard<py::gil_scoped_release>());
}

}  // namespace stagecraft::python

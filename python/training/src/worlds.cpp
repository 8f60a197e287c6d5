#include "worlds.h"

#include <mutex>

#include "errors.h"
#include "process_group_world.h"
#include "rank_threads.h"
#include "stagecraft/core/error.h"
#include "stagecraft/runtime/together.h"
#include "stagecraft/transport/local.h"

namespace stagecraft::python {
namespace {

/// One rank, in the thread that calls it.
class LocalWorld : public WorldBox {
 public:
  LocalWorld(at::Device device, Timeout timeout)
      : WorldBox(nullptr),
        activity_(std::make_shared<Activity>()),
        own_(fabric_.connect(RankId(0), device, [activity = activity_] { return activity->text(); }), device, timeout,
             1, activity_) {
    world_ = &own_;
  }

 private:
  void leave(const std::optional<std::string>& /*failure*/) override {}

  LocalFabric fabric_{1};
  std::shared_ptr<Activity> activity_;
  World own_;
};

void barrier(WorldBox& box) {
  World& world = box.world();
  const py::gil_scoped_release no_gil;
  together(world, [&] { world.everyone().barrier(); });
}

/// The largest of the ranks' numbers.
std::int64_t maximum(WorldBox& box, std::int64_t own) {
  World& world = box.world();
  box.begin_step();
  const py::gil_scoped_release no_gil;
  const at::Tensor largest = at::full({1}, own, at::kLong);
  together(world, [&] { world.everyone().all_reduce(largest, Reduction::kMax); });
  return largest.item<std::int64_t>();
}

}  // namespace

World& WorldBox::world() const {
  if (world_ == nullptr) throw InvalidArgument("the world has ended: make pipelines and run steps before that");
  return *world_;
}

void WorldBox::add(const std::shared_ptr<Dependent>& dependent) {
  std::erase_if(dependents_, [](const auto& one) { return one.expired(); });
  dependents_.push_back(dependent);
}

void WorldBox::close(const std::optional<std::string>& failure) {
  if (world_ == nullptr) return;
  for (auto one = dependents_.rbegin(); one != dependents_.rend(); ++one) {
    if (const auto dependent = one->lock()) dependent->end();
  }
  dependents_.clear();
  world_ = nullptr;
  leave(failure);
}

void bind_worlds(py::module_& module) {
  using Box = WorldBox;
  py::class_<Box, std::shared_ptr<Box>>(module, "World")
      .def_property_readonly("rank", [](const Box& box) { return box.world().rank().value; })
      .def_property_readonly("size", [](const Box& box) { return box.world().size(); })
      .def_property_readonly("replica", [](const Box& box) { return box.world().replica(); })
      .def_property_readonly("replicas", [](const Box& box) { return box.world().replicas(); })
      .def_property_readonly("world_rank", [](const Box& box) { return box.world().world_rank().value; })
      .def_property_readonly("name", [](const Box& box) { return box.world().name(); })
      .def_property_readonly(
          "timeout", [](const Box& box) { return std::chrono::duration<double>(box.world().timeout()).count(); })
      .def_property_readonly("device", [](const Box& box) { return box.world().device(); })
      .def_property_readonly("is_open", &Box::is_open)
      .def("barrier", &barrier)
      .def("maximum", &maximum)
      .def("share_of", [](const Box& box, const at::Tensor& batch) { return box.world().share_of(batch); })
      .def("close", &Box::close, py::arg("failure") = py::none(), py::call_guard<py::gil_scoped_release>());
  module.def(
      "local_world",
      [](const at::Device& device, double timeout) -> std::shared_ptr<Box> {
        return std::make_shared<LocalWorld>(device, Timeout(static_cast<std::int64_t>(timeout * 1000)));
      },
      py::arg("device"), py::arg("timeout"));
  bind_rank_threads(module);
  bind_process_groups(module);
}

}  // namespace stagecraft::python

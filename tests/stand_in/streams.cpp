// Streams and events of the CPU, which LibTorch does not have. Outside of captures everything happens at once.

#include "streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "stagecraft/transport/streams.h"

namespace stagecraft::stand_in {
namespace {

std::int64_t& own_stream_id() {
  thread_local std::int64_t id = 0;
  return id;
}

c10::Stream stream_of_cpu(std::int64_t id) { return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCPU, -1), id); }

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::kCPU> {
  c10::Stream getStream(c10::Device /*device*/) const noexcept override { return stream_of_cpu(own_stream_id()); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return stream_of_cpu(std::exchange(own_stream_id(), stream.id()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device /*device*/, bool /*is_urgent*/) const override {
    return new_stream_of_cpu();
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event;
    Event& recorded = *static_cast<Event*>(*event);
    recorded.set_time();
    recorded.after.clear();
    if (order_of_thread() != nullptr) recorded.after = order_of_thread()->frontier_of(stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr || order_of_thread() == nullptr) return;
    order_of_thread()->frontier_of(stream.id()).merge(Frontier(static_cast<Event*>(event)->after));
  }
  bool queryEvent(void* /*event*/) const override { return true; }
  void synchronizeEvent(void* /*event*/) const override {}
  double elapsedTime(void* from, void* to, const c10::DeviceIndex /*device*/) const override {
    return static_cast<Event*>(to)->milliseconds - static_cast<Event*>(from)->milliseconds;
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
};

/// LibTorch's own, in whose place it is until the process ends.
const c10::impl::DeviceGuardImplInterface* const kReplaced =
    c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::kCPU)].exchange(new Guard);

}  // namespace

void Event::set_time() {
  milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::int64_t current_stream_id() { return own_stream_id(); }

c10::Stream new_stream_of_cpu() {
  static std::atomic<std::int64_t> last = 0;
  return stream_of_cpu(++last);
}

StreamOrder*& order_of_thread() {
  thread_local StreamOrder* own = nullptr;
  return own;
}

}  // namespace stagecraft::stand_in

namespace stagecraft {

bool has_streams(c10::Device /*device*/) { return true; }
c10::Stream unshared_stream(c10::Device /*device*/, bool /*is_urgent*/) { return stand_in::new_stream_of_cpu(); }
std::string place_of_gpu(c10::Device device) { return device.str(); }

}  // namespace stagecraft

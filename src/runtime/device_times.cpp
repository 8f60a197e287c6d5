#include "device_times.h"

#include <utility>

#include "stagecraft/transport/streams.h"

namespace stagecraft {

c10::Event DeviceTimes::recorded() const {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // others have no time
  event.record(current_stream(device_));
  return event;
}

void DeviceTimes::begin(const std::function<double()>& now) {
  marks_.clear();
  first_.emplace(recorded());
  first_->synchronize();
  zero_ = now();
}

void DeviceTimes::start() {
  start_.emplace(recorded());
  received_.reset();
}

void DeviceTimes::received() { received_.emplace(recorded()); }

void DeviceTimes::finish(const Action& action, std::int64_t bytes) {
  if (!start_) return;
  marks_.push_back({action, bytes, std::move(*start_), std::exchange(received_, std::nullopt), recorded()});
  start_.reset();
}

Timeline DeviceTimes::end() {
  const auto seconds_to = [&](const c10::Event& event) { return first_->elapsedTime(event) / 1000; };
  Timeline timeline;
  for (Mark& mark : marks_) {
    mark.end.synchronize();
    const double start = seconds_to(mark.start);
    const double waited = mark.received ? seconds_to(*mark.received) - start : 0;
    timeline.push_back(
        {mark.action, zero_ + start, zero_ + seconds_to(mark.end), waited, mark.bytes, /*beside=*/false});
  }
  marks_.clear();
  return timeline;
}

}  // namespace stagecraft

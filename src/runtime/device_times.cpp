#include "device_times.h"

#include <algorithm>
#include <utility>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {

DeviceTimes::EventPtr DeviceTimes::now() const {
  auto event = std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // others have no time
  event->record(current_stream(device_));
  return event;
}

DeviceTimes::EventPtr DeviceTimes::recorded() {
  if (!graph_marks_) return now();
  if (unused_.empty()) throw InternalError("a graph has more actions than events to time them");
  EventPtr event = std::move(unused_.back());
  unused_.pop_back();
  record_in_graph_(*event);
  in_capture_.push_back(event);
  return event;
}

void DeviceTimes::begin(const std::function<double()>& now) {
  marks_.clear();
  start_.reset();
  last_end_.reset();
  first_ = this->now();
  first_->synchronize();
  zero_ = now();
}

void DeviceTimes::start() {
  start_ = recorded();
  received_.reset();
}

void DeviceTimes::received() { received_ = recorded(); }

void DeviceTimes::finish(const Action& action, std::int64_t bytes) {
  if (!start_) return;
  last_stream_ = current_stream(device_);
  last_end_ = recorded();
  add(action, bytes, last_end_);
}

void DeviceTimes::go_on() {
  if (!last_end_ || *last_stream_ != current_stream(device_)) return start();
  start_ = last_end_;
  received_.reset();
}

void DeviceTimes::pass(const Action& action) {
  if (start_) add(action, 0, start_);
}

void DeviceTimes::add(const Action& action, std::int64_t bytes, EventPtr end) {
  std::vector<Mark>& marks = graph_marks_ ? *graph_marks_ : marks_;
  marks.push_back({action, bytes, std::exchange(start_, nullptr), std::exchange(received_, nullptr), std::move(end),
                   /*is_replayed=*/graph_marks_.has_value()});
}

Timeline DeviceTimes::end() {
  current_stream(device_).synchronize();  // events of a graph are recorded when it runs, not when it is issued
  const auto seconds_to = [&](const c10::Event& event) { return first_->elapsedTime(event) / 1000; };
  Timeline timeline;
  for (const Mark& mark : marks_) {
    mark.end->synchronize();
    const double start = seconds_to(*mark.start);
    const double waited = mark.received ? seconds_to(*mark.received) - start : 0;
    timeline.push_back({mark.action, zero_ + start, zero_ + seconds_to(*mark.end), waited, mark.bytes,
                        /*beside=*/false, mark.is_replayed});
  }
  marks_.clear();
  return timeline;
}

void DeviceTimes::prepare_graph(std::size_t actions, RecordInGraph record) {
  record_in_graph_ = std::move(record);
  in_capture_.clear();
  while (unused_.size() < 2 * actions) unused_.push_back(now());
}

std::vector<DeviceTimes::Mark> DeviceTimes::in_graph(const std::function<void()>& work) {
  graph_marks_.emplace();
  start_.reset();
  last_end_.reset();
  try {
    work();
  } catch (...) {
    graph_marks_.reset();
    start_.reset();
    last_end_.reset();
    throw;
  }
  last_end_.reset();
  return *std::exchange(graph_marks_, std::nullopt);
}

void DeviceTimes::replayed(const std::vector<Mark>& marks, const std::vector<Wait>& waits) {
  for (const Mark& own : marks) {
    Mark& mark = marks_.emplace_back(own);
    const auto wait =
        std::find_if(waits.begin(), waits.end(), [&](const Wait& other) { return other.action == own.action; });
    if (wait != waits.end()) mark.received = std::exchange(mark.start, wait->start);
  }
  last_end_.reset();  // the graph's actions may end on several streams
}

}  // namespace stagecraft

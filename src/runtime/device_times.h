#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "stagecraft/schedule/timeline.h"

namespace stagecraft {

/// When the actions of a step ran on a device with streams, which is later than the host has issued them. Every call
/// records an event on the current stream.
///
/// The events of actions in a graph belong to it, and every replay records them anew: `in_graph` around the capture,
/// then `replayed` with what it returned, in this step and in every one that replays the graph.
class DeviceTimes {
 public:
  using EventPtr = std::shared_ptr<c10::Event>;
  struct Mark {
    Action action;
    std::int64_t bytes = 0;
    EventPtr start;
    EventPtr received;  // when the stream had waited for the action's message; null without one
    EventPtr end;
    bool is_replayed = false;
  };
  /// An action in a graph whose message has come before the graph began.
  struct Wait {
    Action action;
    EventPtr start;
  };

  explicit DeviceTimes(c10::Device device) : device_(device) {}

  /// Waits for the device; `now` then tells the time at which those of the device begin.
  void begin(const std::function<double()>& now);
  /// Around every action; `received` when the stream has waited for the action's message.
  void start();
  void received();
  void finish(const Action& action, std::int64_t bytes);
  /// Instead of `start`, for an action that begins where the one before it has ended: every event takes some of the
  /// device's time.
  void go_on();
  /// After `go_on`, instead of `finish`: the device has nothing to do for the action.
  void pass(const Action& action);
  /// Waits for the device, and returns the times of all actions since `begin`.
  Timeline end();

  /// An event that is recorded now.
  [[nodiscard]] EventPtr now() const;

  using RecordInGraph = std::function<void(const c10::Event&)>;
  /// Before a capture of at most so many actions: makes the events, which a capture cannot. `record` makes one a part
  /// of the graph.
  void prepare_graph(std::size_t actions, RecordInGraph record);
  /// Runs what is captured, and returns the marks of its actions.
  std::vector<Mark> in_graph(const std::function<void()>& work);
  /// The graph with these marks has been issued.
  void replayed(const std::vector<Mark>& marks, const std::vector<Wait>& waits);

 private:
  [[nodiscard]] EventPtr recorded();
  void add(const Action& action, std::int64_t bytes, EventPtr end);

  c10::Device device_;
  double zero_ = 0;
  EventPtr first_;
  EventPtr start_;  // of the action that runs
  EventPtr received_;
  EventPtr last_end_;  // of an action on last_stream_, in the capture that runs, if one does
  std::optional<c10::Stream> last_stream_;
  std::vector<Mark> marks_;
  std::optional<std::vector<Mark>> graph_marks_;  // during a capture
  std::vector<EventPtr> unused_;                  // for a graph
  std::vector<EventPtr> in_capture_;  // of the last capture: if it fails, it is ended with them all the same
  RecordInGraph record_in_graph_;
};

}  // namespace stagecraft

#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "stagecraft/transport/group.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {

/// A thread of a rank that communicates beside the schedule: runs tasks one after the other, in a stream of its own on
/// a device that has streams. After a failure, tasks are skipped until `rest`. Called by one thread.
class BesideThread {
 public:
  /// `peers`, the group that the tasks use, must outlive the thread.
  BesideThread(Group& peers, at::Device device);
  ~BesideThread();
  BesideThread(const BesideThread&) = delete;
  BesideThread& operator=(const BesideThread&) = delete;

  using Ticket = std::uint64_t;
  /// The task runs after all that has been issued to the current stream. Errors say that it happened `where`: "while
  /// the parameters of stage 3 were gathered".
  Ticket start(std::string where, std::function<void()> task);
  /// Waits until the task is done; then the current stream may use its results. Neither waits for tasks that were
  /// started later. Throws the error of any task so far.
  void wait(Ticket ticket);
  /// Waits until all tasks are done or skipped. Then the current stream may use, or free, whatever they used, also
  /// after a failure; the host does not wait for the device. Returns the error, if any, and forgets it.
  std::exception_ptr rest();
  /// The same. Throws the error.
  void finish();

  /// Whether no task was started since the last `rest`.
  [[nodiscard]] bool is_idle() const { return !is_used_; }
  [[nodiscard]] const std::optional<c10::Stream>& stream() const { return stream_; }

 private:
  struct Task {
    std::string where;
    std::function<void()> run;
    std::vector<c10::Event> before;  // on a device with streams
  };

  void work();
  void join_streams();

  Group& peers_;
  at::Device device_;
  std::optional<LentStream> lent_;
  std::optional<c10::Stream> stream_;
  bool is_used_ = false;
  Ticket started_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  Ticket done_ = 0;
  std::map<Ticket, c10::Event> ends_;  // in the stream, of tasks since the last `rest`
  bool is_over_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace stagecraft

#pragma once

#include <c10/core/Device.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "communicator.h"

namespace stagecraft::nccl {

/// All communicators of one rank. A thread looks whether what was issued to them ends: the device waits for another
/// rank without a limit of its own, and the host waits for the device.
class Watch {
 public:
  /// `members`: of the communicator that stands still.
  using Report = std::function<void(const std::vector<RankId>& members, const std::string& text)>;
  /// `text`: the error of this rank's device. Calls `abort_all` before anything that may wait for NCCL.
  using ReportError = std::function<void(const std::string& text, const std::function<void()>& abort_all)>;

  Watch(c10::Device device, std::chrono::milliseconds limit) : device_(device), limit_(limit) {}
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  [[nodiscard]] c10::Device device() const { return device_; }
  /// The longest that one rank waits for another.
  [[nodiscard]] std::chrono::milliseconds limit() const { return limit_; }

  /// Called once. `report` is called when an operation has not ended within the limit, `report_error` when the device
  /// has failed: one of them, at most once.
  void start(Report report, ReportError report_error);
  /// Ends the watch: it does not report any more.
  void stop();
  /// The communicator of this id; connects it if it is new. After `abort_all`, one that is aborted.
  ///
  /// It lives as long as this object: what this rank has issued, and what others still read from its memory, must not
  /// be cut off when whoever asked for it is gone. So it is used again.
  std::shared_ptr<Communicator> connect(const std::string& id, std::vector<RankId> members, int place, Use use);
  /// The id of a communicator of these members that was given back, or a new id. Called by the first of them, who tells
  /// the others.
  std::string id_for(const std::vector<RankId>& members);
  void give_back(const std::string& id);
  [[nodiscard]] std::vector<std::shared_ptr<Communicator>> all();
  /// The communicators that this rank is a member of.
  [[nodiscard]] std::vector<std::shared_ptr<Communicator>> with(RankId rank);
  /// Whether all operations have ended by then.
  [[nodiscard]] bool wait_until_idle(Clock::time_point until);
  /// Ends all operations, with any result. No others can be issued.
  void abort_all();

 private:
  struct Known {
    std::string id;
    std::shared_ptr<Communicator> communicator;
    bool is_free = false;
  };
  void run(const Report& report, const ReportError& report_error);

  c10::Device device_;
  std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  std::vector<Known> known_;
  bool is_over_ = false;
  bool is_aborted_ = false;
  std::thread thread_;
};

}  // namespace stagecraft::nccl

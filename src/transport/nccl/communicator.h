#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "library.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/ids.h"

namespace stagecraft::nccl {

using Clock = std::chrono::steady_clock;

/// A new id, by which ranks find each other. One of them makes it and tells the others.
std::string new_id();

/// What NCCL does once in each process, such as loading its kernels, which takes seconds: here all ranks do it at the
/// same time, and not one after another when the first message reaches them.
void prepare(c10::Device device);

/// The error of a device that has failed, such as a failed assertion in a kernel of the program; none if it is well.
/// Does not wait for it.
std::optional<std::string> error_of(c10::Device device);

/// What ranks are connected for: messages from the first of two to the second, or what all of them take part in.
enum class Use { kMessages, kCollectives };

/// Some ranks that NCCL connects, with a stream of its own on this rank's device. What is issued to it runs in that
/// order on all of them; the host waits only for the connection.
class Communicator {
 public:
  /// Begins to connect, in a thread of its own: when a rank dies in the meantime, that call may never return.
  /// `members`: of the world, in the order of this communicator; `place`: this rank's among them.
  Communicator(c10::Device device, const std::string& id, std::vector<RankId> members, int place, Use use);
  /// Ends what is still running: see Watch, which has it.
  ~Communicator() { abort(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// See new_id.
  [[nodiscard]] std::string id() const;
  [[nodiscard]] const std::vector<RankId>& members() const { return members_; }
  [[nodiscard]] const c10::Stream& stream() const;
  /// Whether all ranks are connected, or none will be after `abort`, `until` at the latest. Throws TransportError when
  /// it has failed.
  bool wait_until_connected(Clock::time_point until);

  using Operation = std::function<void(const Library& nccl, Comm comm, Stream stream)>;
  /// Issues operations to the stream; `what` names them if they do not end. Returns false after `abort`, when nothing
  /// is issued any more: whoever has lost another rank tells those who wait for it.
  [[nodiscard]] bool issue(std::string what, const Operation& operation);

  /// How far this rank has come with the operations that all members take part in, each under a label that they agree
  /// on. This and what follows is used by one thread at a time.
  struct Progress {
    std::uint64_t issued = 0;
    std::string last;  ///< The label of the last one.

    bool operator==(const Progress&) const = default;
  };
  [[nodiscard]] const Progress& progress() const { return progress_; }
  /// Issues an operation that all members take part in, after what the current stream has done, and before what it does
  /// next. Returns false as `issue` does.
  [[nodiscard]] bool take_part(std::string what, const std::string& label, const Operation& operation);
  /// This rank is about to agree with the others on an operation. If it never learns whether they have issued it, it
  /// can still make up for it by `operation`, which must not change what others may use by then. Forgotten when the
  /// next one is expected or issued.
  void expect(const std::string& label, Operation operation) { expected_.emplace(label, std::move(operation)); }
  void expect_nothing() { expected_.reset(); }
  [[nodiscard]] bool expects_any() const { return expected_.has_value(); }
  /// What is expected under this label; null: nothing.
  [[nodiscard]] const Operation* expected(const std::string& label) const {
    return expected_ && expected_->first == label ? &expected_->second : nullptr;
  }

  /// An operation that has been waiting for another rank, or moving data, for longer than `limit`. What this rank has
  /// issued before it, such as its compute, does not count.
  [[nodiscard]] std::optional<std::string> overdue(Clock::duration limit);
  /// Whether all that was issued has ended.
  [[nodiscard]] bool is_idle();
  /// The error of the device that one of these two has met, such as a failed assertion in a kernel of the program. All
  /// that was issued then counts as ended.
  [[nodiscard]] std::optional<std::string> device_error();
  /// Ends what is running on the device, with any result, also while it connects. May be called while another thread
  /// uses it.
  void abort();
  /// The same of several. One after the other would not do: NCCL waits for the whole device when it gives back the
  /// memory of the first, also for operations of the second, which wait for a rank that is gone.
  static void abort(const std::vector<std::shared_ptr<Communicator>>& all);

 private:
  /// What the thread that connects needs, also when it is left alone.
  struct Connection;
  struct Issued {
    std::string what;
    c10::Event begin;
    c10::Event end;
    std::optional<Clock::time_point> begun = {};  // when it was first seen to have begun
  };
  Issued* first_in_flight();

  std::vector<RankId> members_;
  std::shared_ptr<Connection> connection_;
  Progress progress_;
  std::optional<std::pair<std::string, Operation>> expected_;
  std::mutex mutex_;  // guards what follows
  std::deque<Issued> in_flight_;
  std::optional<std::string> device_error_;
};

}  // namespace stagecraft::nccl

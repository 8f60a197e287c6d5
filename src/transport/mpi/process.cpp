#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>

#include "coordinator.h"
#include "heartbeat.h"
#include "mpi_channel.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/identity.h"
#include "stagecraft/transport/mpi.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How long a failed rank waits for the others to end.
constexpr milliseconds kHeed{2000};
constexpr milliseconds kHeedAfterTimeout{200};

volatile std::sig_atomic_t told_to_end = 0;

/// Writes a line to stderr in one call, so that the lines of several ranks do not mix.
void say(const std::string& text) {
  const std::string line = text + "\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

/// Ends the process unless destroyed within the timeout: for MPI calls that wait for others and cannot be cancelled.
class Watchdog {
 public:
  Watchdog(Timeout timeout, std::string text)
      : thread_([this, timeout, text = std::move(text)] {
          std::unique_lock lock(mutex_);
          if (called_off_.wait_for(lock, timeout, [&] { return is_done_; })) return;
          say(text);
          _exit(1);
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    called_off_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable called_off_;
  bool is_done_ = false;
  std::thread thread_;
};

/// The rank of this process during a run; -1 before and after.
std::atomic<int> running_rank = -1;

/// Called at exit: fails if the run is not over, because some launchers take exit(0) of one rank for success of all.
void complain_about_exit() {
  const int rank = running_rank;
  if (rank < 0) return;
  say("rank " + std::to_string(rank) + ": exit was called in the middle of the run");
  _exit(1);
}

std::string seconds(Timeout timeout) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", std::chrono::duration<double>(timeout).count());
  return text;
}

std::string broadcast_text(std::string text, MPI_Comm communicator) {
  auto size = static_cast<std::uint64_t>(text.size());
  MPI_Bcast(&size, 1, MPI_UINT64_T, 0, communicator);
  text.resize(size);
  MPI_Bcast(text.data(), static_cast<int>(size), MPI_BYTE, 0, communicator);
  return text;
}

}  // namespace

bool has_mpi() { return true; }

class MpiProcess::Implementation {
 public:
  explicit Implementation(Timeout timeout) : timeout_(timeout) {
    int is_started = 0;
    MPI_Initialized(&is_started);
    if (is_started != 0) throw TransportError("MPI has been started in this process before", RankId(-1));
    const Watchdog watchdog(timeout, "stagecraft: MPI has not started within " + seconds(timeout) +
                                         ": some process of this run does not start it. Do all run this program?");
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_dup(MPI_COMM_WORLD, &communicator_);  // messages of others cannot be mistaken for ours
    MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
    int rank = 0;
    MPI_Comm_rank(communicator_, &rank);
    MPI_Comm_size(communicator_, &ranks_);
    rank_ = RankId(rank);
    helps_ = provided >= MPI_THREAD_SERIALIZED;
    MPI_Comm local = MPI_COMM_NULL;
    MPI_Comm_split_type(communicator_, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, &local_rank_);
    MPI_Comm_size(local, &local_ranks_);
    count_cores(local);
    MPI_Comm_free(&local);
    compare_versions();
    start_heartbeat();
  }

  ~Implementation() { stop_watching(); }

  std::shared_ptr<Transport> connect(std::optional<at::Device> device, std::function<std::string()> activity) {
    activity_ = std::move(activity);
    device_ = device;
    auto channel = std::make_unique<mpi::MpiChannel>(communicator_, device, /*has_own_core=*/cores_ > 0);
    channel_ = channel.get();
    transport_ = std::make_shared<Transport>(std::move(channel), activity_);
    struct sigaction action {};
    action.sa_handler = [](int) { told_to_end = 1; };
    sigaction(SIGTERM, &action, &before_);
#ifdef MPICH
    // The launcher of MPICH sends this signal when a rank dies, and MPICH then ends the others without a message. They
    // learn it by heartbeat instead.
    std::signal(SIGUSR1, SIG_IGN);
#endif
    watcher_ = std::thread([this] { watch(); });
    running_rank = rank_.value;
    static const int registered = std::atexit(complain_about_exit);
    (void)registered;
    return transport_;
  }

  void uses_too(const std::shared_ptr<Transport>& transport) {
    const std::lock_guard lock(mutex_);
    other_transport_ = transport;
  }
  void set_reported() { reported_ = true; }

  int finish(const std::optional<std::string>& failure) {
    if (!transport_ && !failure) return end_mpi(0);
    if (!transport_) connect(std::nullopt, {});  // to announce the failure
    reported_ = true;
    transport_->depart(failure);
    // After a timeout, some rank does not react: do not wait long for it.
    const Timeout heed = coordinator().is_stuck() ? kHeedAfterTimeout : std::min<Timeout>(timeout_, kHeed);
    const auto begin = Clock::now();
    while (!channel_->is_done() || !coordinator().all_others_departed()) {
      if (const auto lost = coordinator().lost()) {
        if (!failure) say("rank " + std::to_string(rank_.value) + ": " + lost->message);
        end_at_once();
      }
      if (failure && Clock::now() - begin > heed) end_at_once();
      std::this_thread::sleep_for(milliseconds(1));
    }
    const bool others_failed = coordinator().failed_departure().has_value();
    leaving_ = true;
    stop_watching();
    channel_->close();
    return end_mpi(failure || others_failed ? 1 : 0);
  }

  RankId rank_;
  int ranks_ = 1;
  int local_rank_ = 0;
  int local_ranks_ = 1;
  int cores_ = 0;

 private:
  [[nodiscard]] Coordinator& coordinator() const { return transport_->coordinator(); }

  void count_cores(MPI_Comm local) {
    cpu_set_t own;
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof own, &own) != 0) return;
    std::vector<cpu_set_t> all(static_cast<std::size_t>(local_ranks_));
    MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, local);
    const auto sharing = std::count_if(all.begin(), all.end(), [&](const cpu_set_t& other) {
      cpu_set_t both;
      CPU_AND(&both, &own, &other);
      return CPU_COUNT(&both) > 0;
    });
    cores_ = CPU_COUNT(&own) / static_cast<int>(sharing);
  }

  void compare_versions() {
    char own[64] = {};
    version().copy(own, sizeof own - 1);
    std::vector<char> all(sizeof own * static_cast<std::size_t>(ranks_));
    MPI_Allgather(own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, communicator_);
    for (int r = 0; r < ranks_; ++r) {
      const char* other = &all[sizeof own * static_cast<std::size_t>(r)];
      if (std::strcmp(other, &all[0]) == 0) continue;
      throw TransportError("rank 0 runs Stagecraft " + std::string(&all[0]) + ", but rank " + std::to_string(r) +
                               " runs " + other + ": build all with one version",
                           RankId(r));
    }
  }

  void start_heartbeat() {
    const auto silence = std::max<milliseconds>(milliseconds(500), timeout_ * 6 / 10);
    heartbeat_.emplace(rank_, ranks_, silence,
                       [this](RankId rank, const std::string& text) { coordinator().lose(rank, text); });
    if (ranks_ == 1) return;
    const std::string contact = broadcast_text(rank_.value == 0 ? heartbeat_->listen() : "", communicator_);
    int missing = 0;
    if (rank_.value == 0) {
      missing = heartbeat_->accept_all(milliseconds(10'000));
    } else {
      heartbeat_->connect(contact);
    }
    if (missing > 0) {
      say("stagecraft: " + std::to_string(missing) + " of " + std::to_string(ranks_ - 1) +
          " processes cannot reach rank 0 by TCP: if one of them dies, it will be noticed by timeouts alone");
    }
    MPI_Barrier(communicator_);
  }

  /// The helper thread: makes progress on messages while the rank computes, and watches the other processes.
  void watch() {
    if (device_) set_current_device(*device_);
    bool has_announced_exit = false;
    milliseconds rest(1);
    while (!is_over_) {
      heartbeat_->run_once(rest);
      if (helps_) rest = help();
      if (told_to_end != 0) end_as_told();
      if (leaving_ && !has_announced_exit) {
        heartbeat_->announce_exit();
        has_announced_exit = true;
      }
    }
    if (!has_announced_exit) heartbeat_->announce_exit();
  }

  /// One round of progress. Returns the time until the next one.
  milliseconds help() {
    try {
      switch (channel_->progress_if_free()) {
        case mpi::MpiChannel::Load::kMoving:
          return milliseconds(1);
        case mpi::MpiChannel::Load::kWaiting:
          return milliseconds(4);
        case mpi::MpiChannel::Load::kIdle:
          break;
      }
    } catch (const std::exception& error) {
      coordinator().lose(rank_, "rank " + std::to_string(rank_.value) + ": " + error.what());
    }
    return milliseconds(10);
  }

  /// After SIGTERM, which the launcher sends to all ranks when one is gone: reports what this rank was doing, and
  /// exits.
  [[noreturn]] void end_as_told() {
    const auto begin = Clock::now();
    std::shared_ptr<Transport> other;
    {
      const std::lock_guard lock(mutex_);
      other = other_transport_.lock();
    }
    const auto lost_rank = [&] {
      const auto lost = coordinator().lost();
      return lost || !other ? lost : other->coordinator().lost();
    };
    while (Clock::now() - begin < milliseconds(400) && !lost_rank() && !reported_)
      heartbeat_->run_once(milliseconds(20));
    if (!reported_) {
      std::string pending = coordinator().pending();
      if (pending.empty() && other) pending = other->coordinator().pending();
      const std::string activity = activity_ ? activity_() : "";
      const auto lost = lost_rank();
      say("rank " + std::to_string(rank_.value) + ": ended by the launcher (SIGTERM)" +
          (lost ? "; " + lost->message : "") + (activity.empty() ? "" : "; it was at " + activity) +
          (pending.empty() ? "; it was not waiting for any rank" : "; it was waiting for " + pending));
    } else {
      std::this_thread::sleep_for(milliseconds(300));  // finish() may still be reporting
    }
    _exit(128 + SIGTERM);
  }

  /// Aborts the run, because some rank will never end normally.
  [[noreturn]] void end_at_once() {
    std::fflush(nullptr);
    std::this_thread::sleep_for(milliseconds(300));  // for the others to report their errors
    stop_watching();
    MPI_Abort(MPI_COMM_WORLD, 1);  // the launcher ends those that cannot end by themselves
    _exit(1);
  }

  void stop_watching() {
    if (!watcher_.joinable()) return;
    is_over_ = true;
    watcher_.join();
    sigaction(SIGTERM, &before_, nullptr);
  }

  int end_mpi(int code) {
    running_rank = -1;
    const Watchdog watchdog(timeout_, "stagecraft: MPI has not ended within " + seconds(timeout_));
    MPI_Comm_free(&communicator_);
    MPI_Finalize();
    return code;
  }

  Timeout timeout_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  bool helps_ = false;
  std::optional<mpi::Heartbeat> heartbeat_;
  std::shared_ptr<Transport> transport_;
  mpi::MpiChannel* channel_ = nullptr;  // owned by transport_
  std::mutex mutex_;
  std::weak_ptr<Transport> other_transport_;  // guarded by mutex_: the helper thread reads it
  std::function<std::string()> activity_;
  std::optional<at::Device> device_;
  std::thread watcher_;
  struct sigaction before_ {};
  std::atomic<bool> is_over_ = false;
  std::atomic<bool> leaving_ = false;
  std::atomic<bool> reported_ = false;
};

MpiProcess::MpiProcess(Timeout timeout) : implementation_(std::make_unique<Implementation>(timeout)) {}
MpiProcess::~MpiProcess() = default;
RankId MpiProcess::rank() const { return implementation_->rank_; }
int MpiProcess::ranks() const { return implementation_->ranks_; }
int MpiProcess::local_rank() const { return implementation_->local_rank_; }
int MpiProcess::cores() const { return implementation_->cores_; }
std::shared_ptr<Transport> MpiProcess::connect(std::optional<at::Device> device,
                                               std::function<std::string()> activity) {
  return implementation_->connect(device, std::move(activity));
}
void MpiProcess::uses_too(const std::shared_ptr<Transport>& transport) { implementation_->uses_too(transport); }
void MpiProcess::set_reported() { implementation_->set_reported(); }
int MpiProcess::finish(const std::optional<std::string>& failure) { return implementation_->finish(failure); }

}  // namespace stagecraft

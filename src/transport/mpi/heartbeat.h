#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stagecraft/core/ids.h"

/// Heartbeats: a TCP connection from every process to that of rank 0, beside MPI. When a process dies, its connection
/// closes at once; one that is stopped, or whose host is out of reach, goes silent. Rank 0 tells the others.
namespace stagecraft::mpi {

class Heartbeat {
 public:
  using News = std::function<void(RankId, const std::string&)>;

  /// `silence`: how long a process may be silent before it counts as lost. `news`: called with a lost rank and the
  /// reason.
  Heartbeat(RankId rank, int ranks, std::chrono::milliseconds silence, News news);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// On rank 0: starts listening. Returns what `connect` needs; empty if that fails.
  std::string listen();
  /// On the others: connects to what `listen` returned. False if rank 0 cannot be reached.
  bool connect(const std::string& contact);
  /// On rank 0: accepts connections until all ranks are connected, or none has connected for `patience`. Returns the
  /// number of missing ranks.
  int accept_all(std::chrono::milliseconds patience);

  /// One round: waits up to `wait` for input and reads it; when due, sends heartbeats and looks for silent processes.
  /// Between heartbeats, the cost depends on the input, not on the number of ranks.
  void run_once(std::chrono::milliseconds wait);
  /// Announces that this process will end, so that it does not count as lost.
  void announce_exit();

 private:
  struct Line {
    int socket = -1;
    RankId peer;
    std::string heard;
    std::chrono::steady_clock::time_point last_heard;
    bool has_announced_exit = false;
  };

  void watch(const Line& line) const;
  void find_silent();
  void hear(Line& line);
  void take_words(Line& line);
  void lose(Line& line, const std::string& text);
  void speak(const Line& line, const std::string& word) const;

  RankId rank_;
  int ranks_;
  std::chrono::milliseconds silence_;
  News news_;
  int listener_ = -1;
  int events_ = -1;  // epoll: which connections have input
  std::uint64_t secret_ = 0;
  std::vector<Line> lines_;
  std::chrono::steady_clock::time_point last_spoken_;
};

}  // namespace stagecraft::mpi

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stagecraft/core/ids.h"

/// Who is alive: a TCP connection from every process to that of rank 0, beside MPI. A process that dies closes it at
/// once; one that is stopped, or whose host is out of reach, is silent on it. Rank 0 passes the news on.
namespace stagecraft::mpi {

class Lifeline {
 public:
  using News = std::function<void(RankId, const std::string&)>;

  /// `silence`: the longest that a process may say nothing. `news`: called for a process that is lost.
  Lifeline(RankId rank, int ranks, std::chrono::milliseconds silence, News news);
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  /// On rank 0: opens the door. Returns what the others need to come in.
  std::string listen();
  /// On the others; false if no way leads there.
  bool connect(const std::string& invitation);
  /// On rank 0: lets the others in, until all are there or none has come for a while. The number that is missing.
  int admit(std::chrono::milliseconds patience);

  /// One round: waits up to `wait` for something to happen, hears those that speak; now and then it speaks, and looks
  /// who is silent. The cost is that of what happens, not of the number of ranks.
  void attend(std::chrono::milliseconds wait);
  /// This process will end, and is not to be missed.
  void farewell();

 private:
  struct Line {
    int socket = -1;
    RankId peer;
    std::string heard;
    std::chrono::steady_clock::time_point last_heard;
    bool said_farewell = false;
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
  int door_ = -1;
  int events_ = -1;  // epoll: which lines have something to hear
  std::uint64_t secret_ = 0;
  std::vector<Line> lines_;
  std::chrono::steady_clock::time_point last_spoken_;
};

}  // namespace stagecraft::mpi

#include "heartbeat.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <sstream>
#include <thread>

// Lines of text: "hello SECRET RANK", "welcome SECRET", "alive" (heartbeat), "exit", "lost RANK TEXT".

namespace stagecraft::mpi {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kConnectPatience{2000};

/// The IPv4 addresses of this host, loopback last.
std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) == 0) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
      if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
      char text[INET_ADDRSTRLEN];
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof text);
      addresses.emplace_back(text);
    }
    freeifaddrs(all);
  }
  addresses.emplace_back("127.0.0.1");
  return addresses;
}

void make_quick(int socket) {
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// A connected socket, or -1.
int connect_to(const std::string& address, std::uint16_t port) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(port);
  if (inet_pton(AF_INET, address.c_str(), &where.sin_addr) != 1) return -1;
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  if (made < 0) return -1;
  make_quick(made);
  if (::connect(made, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0) return made;
  if (errno == EINPROGRESS) {
    pollfd wait{made, POLLOUT, 0};
    int error = 1;
    socklen_t size = sizeof error;
    if (poll(&wait, 1, static_cast<int>(kConnectPatience.count())) == 1 &&
        getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0) {
      return made;
    }
  }
  close(made);
  return -1;
}

}  // namespace

Heartbeat::Heartbeat(RankId rank, int ranks, milliseconds silence, News news)
    : rank_(rank),
      ranks_(ranks),
      silence_(silence),
      news_(std::move(news)),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      last_spoken_(Clock::now()) {
  lines_.reserve(static_cast<std::size_t>(ranks));
}

Heartbeat::~Heartbeat() {
  for (const Line& line : lines_) {
    if (line.socket >= 0) close(line.socket);
  }
  if (listener_ >= 0) close(listener_);
  if (events_ >= 0) close(events_);
}

void Heartbeat::watch(const Line& line) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<std::uint64_t>(&line - lines_.data());
  epoll_ctl(events_, EPOLL_CTL_ADD, line.socket, &event);
}

std::string Heartbeat::listen() {
  std::random_device random;
  secret_ = (std::uint64_t{random()} << 32) | random();
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in anywhere{};
  anywhere.sin_family = AF_INET;
  anywhere.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof anywhere;
  if (listener_ < 0 || bind(listener_, reinterpret_cast<const sockaddr*>(&anywhere), sizeof anywhere) != 0 ||
      ::listen(listener_, ranks_) != 0 || getsockname(listener_, reinterpret_cast<sockaddr*>(&anywhere), &size) != 0) {
    return "";
  }
  make_quick(listener_);
  std::ostringstream contact;
  contact << secret_ << ' ' << ntohs(anywhere.sin_port);
  for (const std::string& address : own_addresses()) contact << ' ' << address;
  return contact.str();
}

bool Heartbeat::connect(const std::string& contact) {
  std::istringstream in(contact);
  std::uint16_t port = 0;
  if (!(in >> secret_ >> port)) return false;
  for (std::string address; in >> address;) {
    const int socket = connect_to(address, port);
    if (socket < 0) continue;
    Line& line = lines_.emplace_back();
    line.socket = socket;
    line.peer = RankId(0);
    line.last_heard = Clock::now();
    speak(line, "hello " + std::to_string(secret_) + " " + std::to_string(rank_.value));
    // Another program may listen at this address: wait for the welcome.
    const auto begin = Clock::now();
    while (line.heard.find('\n') == std::string::npos && line.socket >= 0 && Clock::now() - begin < kConnectPatience) {
      pollfd wait{line.socket, POLLIN, 0};
      poll(&wait, 1, 50);
      char buffer[256];
      const ssize_t got = recv(line.socket, buffer, sizeof buffer, 0);
      if (got > 0) line.heard.append(buffer, static_cast<std::size_t>(got));
      if (got == 0 || (got < 0 && errno != EAGAIN)) break;
    }
    if (line.heard.starts_with("welcome " + std::to_string(secret_) + "\n")) {
      line.heard.erase(0, line.heard.find('\n') + 1);
      line.last_heard = Clock::now();
      watch(line);
      return true;
    }
    close(line.socket);
    lines_.pop_back();
  }
  return false;
}

int Heartbeat::accept_all(milliseconds patience) {
  auto last = Clock::now();
  while (static_cast<int>(lines_.size()) + 1 < ranks_ && Clock::now() - last < patience) {
    pollfd wait{listener_, POLLIN, 0};
    if (poll(&wait, 1, 50) != 1) continue;
    const int socket = accept(listener_, nullptr, nullptr);
    if (socket < 0) continue;
    make_quick(socket);
    std::string hello;
    pollfd word{socket, POLLIN, 0};
    char buffer[256];
    while (hello.find('\n') == std::string::npos && poll(&word, 1, 1000) == 1) {
      const ssize_t got = recv(socket, buffer, sizeof buffer, 0);
      if (got <= 0) break;
      hello.append(buffer, static_cast<std::size_t>(got));
    }
    std::istringstream in(hello);
    std::string greeting;
    std::uint64_t secret = 0;
    int rank = -1;
    if (!(in >> greeting >> secret >> rank) || secret != secret_ || rank < 1 || rank >= ranks_) {
      close(socket);
      continue;
    }
    Line& line = lines_.emplace_back();
    line.socket = socket;
    line.peer = RankId(rank);
    line.last_heard = last = Clock::now();
    speak(line, "welcome " + std::to_string(secret_));
    watch(line);
  }
  for (Line& line : lines_) line.last_heard = Clock::now();
  return ranks_ - 1 - static_cast<int>(lines_.size());
}

void Heartbeat::speak(const Line& line, const std::string& word) const {
  if (line.socket < 0) return;
  const std::string text = word + "\n";
  // A full buffer means that the other side does not read; it will be noticed as silent.
  (void)!::send(line.socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Heartbeat::run_once(milliseconds wait) {
  const milliseconds between = std::max(milliseconds(20), silence_ / 10);
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(events_, events.data(), static_cast<int>(events.size()),
                               static_cast<int>(std::min(wait, between).count()));
  if (count < 0 && errno != EINTR) std::this_thread::sleep_for(wait);
  for (int i = 0; i < count; ++i) hear(lines_[events[static_cast<std::size_t>(i)].data.u64]);
  if (Clock::now() - last_spoken_ < between) return;
  last_spoken_ = Clock::now();
  for (const Line& line : lines_) speak(line, "alive");
  find_silent();
}

void Heartbeat::find_silent() {
  // Read first: input may have arrived while this process itself did not run.
  for (Line& line : lines_) {
    if (line.socket >= 0 && !line.has_announced_exit && Clock::now() - line.last_heard >= silence_) hear(line);
  }
  const auto now = Clock::now();
  for (Line& line : lines_) {
    if (line.socket < 0 || line.has_announced_exit || now - line.last_heard < silence_) continue;
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.1f", std::chrono::duration<double>(now - line.last_heard).count());
    lose(line, "rank " + std::to_string(line.peer.value) + " has been silent for " + seconds +
                   " s: its process is stopped, or its host cannot be reached");
  }
}

void Heartbeat::hear(Line& line) {
  char buffer[4096];
  while (line.socket >= 0) {
    const ssize_t got = recv(line.socket, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) {
      line.heard.append(buffer, static_cast<std::size_t>(got));
      line.last_heard = Clock::now();
      continue;
    }
    take_words(line);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (line.has_announced_exit) {
      close(line.socket);
      line.socket = -1;
      return;
    }
    lose(line, "the process of rank " + std::to_string(line.peer.value) +
                   " has ended in the middle of the run: it was killed, crashed or called exit");
    return;
  }
}

void Heartbeat::take_words(Line& line) {
  for (std::size_t end = 0; (end = line.heard.find('\n')) != std::string::npos;) {
    std::istringstream in(line.heard.substr(0, end));
    line.heard.erase(0, end + 1);
    std::string word;
    in >> word;
    if (word == "exit") line.has_announced_exit = true;
    if (word == "lost") {
      int rank = -1;
      std::string text;
      in >> rank;
      std::getline(in >> std::ws, text);
      news_(RankId(rank), text);
    }
  }
}

void Heartbeat::lose(Line& line, const std::string& text) {
  close(line.socket);
  line.socket = -1;
  news_(line.peer, text);
  for (const Line& other : lines_) speak(other, "lost " + std::to_string(line.peer.value) + " " + text);
}

void Heartbeat::announce_exit() {
  for (const Line& line : lines_) speak(line, "exit");
}

}  // namespace stagecraft::mpi

#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// TCP between processes, of one host or several.
namespace stagecraft::sockets {

using Clock = std::chrono::steady_clock;

/// A file descriptor that closes itself. A child that this process forks does not have it: otherwise the other end
/// would not notice that this process has died before its child.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor);
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      close();
      descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
  void close();

  // All of these throw std::system_error when the connection is broken.
  /// How many bytes went without waiting.
  [[nodiscard]] std::size_t write_some(std::span<iovec> parts) const;
  /// Waits until it can go on writing. Returns how many bytes went.
  [[nodiscard]] std::size_t write(std::span<iovec> parts) const;
  /// Waits for something to read. Returns how many bytes came; 0 when the other side has ended.
  [[nodiscard]] std::size_t read(void* data, std::size_t room) const;
  /// Returns false when the other side has ended before all of it came, or it did not come by `until`.
  [[nodiscard]] bool read_all(void* data, std::size_t bytes, Clock::time_point until) const;
  /// Waits for something to read, or for the other side to end; false when neither has come by `until`.
  [[nodiscard]] bool wait_to_read(Clock::time_point until) const;
  /// Whether the other side has closed the connection.
  [[nodiscard]] bool is_hung_up() const;
  /// The other side reads the end of the stream after what was written.
  void end_writing() const;
  /// Ends waits of other threads in `read` and `write`.
  void break_off() const;

 private:
  int descriptor_ = -1;
};

/// Where a process can be reached.
struct Address {
  /// Names the host, and on it the network that the process sees.
  std::string host;
  std::uint16_t port = 0;
  /// Numbers of its network interfaces, in the order in which they are to be tried.
  std::vector<std::string> numbers;

  [[nodiscard]] std::string to_text() const;
  static Address from_text(const std::string& text);
};

/// Waits for connections on a free port of all interfaces.
class Listener {
 public:
  Listener();
  [[nodiscard]] Address address() const;
  /// A closed socket when nobody came by `until`.
  [[nodiscard]] Socket accept(Clock::time_point until) const;

 private:
  Socket socket_;
};

/// Tries its numbers until `is_right` says that the other end is meant: on another network, or another host that is
/// called the same, a number may belong to somebody else. A closed socket when there is no such connection by `until`,
/// or when others alone have answered.
Socket connect_to(const Address& address, const std::function<bool(const Socket&)>& is_right, Clock::time_point until);

}  // namespace stagecraft::sockets

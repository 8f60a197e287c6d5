#include "socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
#include <system_error>

#include "stagecraft/core/host.h"

namespace stagecraft::sockets {
namespace {

[[noreturn]] void fail(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

int milliseconds_until(Clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

/// Whether one of the events has come by `until`.
bool wait_for(int descriptor, short events, Clock::time_point until) {
  while (true) {
    pollfd one{descriptor, events, 0};
    const int ready = ::poll(&one, 1, milliseconds_until(until));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) fail("poll");
    if (ready == 0 && Clock::now() >= until) return false;
  }
}

void set(int descriptor, int level, int option, int value) {
  ::setsockopt(descriptor, level, option, &value, sizeof value);
}

/// Small messages leave at once; a host that is gone is noticed within half a minute.
void prepare(int descriptor) {
  set(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

std::size_t send_parts(int descriptor, std::span<iovec> parts, int flags) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = std::min<std::size_t>(parts.size(), 64);
  while (true) {
    const ssize_t sent = ::sendmsg(descriptor, &message, flags | MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) fail("sendmsg");
  }
}

/// The host as it is running now, and the network namespace of this process: what two processes must share to reach
/// each other by the loopback interface.
std::string host_identity() {
  std::string identity = running_host();
  struct stat of {};
  if (::stat("/proc/self/ns/net", &of) == 0) identity.append("/").append(std::to_string(of.st_ino));
  return identity;
}

/// Whether the interface is the one that the user has named for such connections, if any. Variables of other libraries
/// count too, since they answer the same question; their lists and signs (`=`, `^`) do not.
bool is_wanted(const std::string& interface) {
  for (const char* variable : {"STAGECRAFT_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    const char* name = std::getenv(variable);
    if (name != nullptr && *name != 0 && std::strpbrk(name, ",=^") == nullptr) return interface.starts_with(name);
  }
  return true;
}

std::vector<std::string> own_numbers() {
  std::vector<std::string> version_4;
  std::vector<std::string> version_6;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) fail("getifaddrs");
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (!is_wanted(one->ifa_name)) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (one->ifa_addr->sa_family == AF_INET) {
      const auto* number = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
      version_4.emplace_back(::inet_ntop(AF_INET, &number->sin_addr, text.data(), text.size()));
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      const auto* number = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&number->sin6_addr)) continue;  // means nothing on another host
      version_6.emplace_back(::inet_ntop(AF_INET6, &number->sin6_addr, text.data(), text.size()));
    }
  }
  ::freeifaddrs(all);
  version_4.insert(version_4.end(), version_6.begin(), version_6.end());
  constexpr std::size_t kEnough = 8;
  if (version_4.size() > kEnough) version_4.resize(kEnough);
  return version_4;
}

Socket connect_to(const std::string& number, std::uint16_t port, Clock::time_point until) {
  sockaddr_storage storage{};
  socklen_t size = 0;
  if (auto* four = reinterpret_cast<sockaddr_in*>(&storage);
      ::inet_pton(AF_INET, number.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    size = sizeof *four;
  } else if (auto* six = reinterpret_cast<sockaddr_in6*>(&storage);
             ::inet_pton(AF_INET6, number.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    size = sizeof *six;
  } else {
    return {};
  }
  Socket socket(::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return {};
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&storage), size) != 0) {
    if (errno != EINPROGRESS || !wait_for(socket.get(), POLLOUT, until)) return {};
    int error = 0;
    socklen_t bytes = sizeof error;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 || error != 0) return {};
  }
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) & ~O_NONBLOCK);
  prepare(socket.get());
  return socket;
}

/// The sockets of this process. In a child that it forks, such as one that loads data, their descriptors lead nowhere.
class OpenSockets {
 public:
  static OpenSockets& all() {
    static OpenSockets& instance = *new OpenSockets;  // never destroyed: processes fork until their end
    return instance;
  }
  void add(int descriptor) {
    const std::lock_guard lock(mutex_);
    descriptors_.insert(descriptor);
  }
  void close(int descriptor) {
    const std::lock_guard lock(mutex_);
    descriptors_.erase(descriptor);
    ::close(descriptor);
  }

 private:
  OpenSockets() {
    ::pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); }, [] { all().begin_child(); });
  }

  /// Keeps the numbers taken: objects that the child has inherited still close them.
  void begin_child() {
    const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int descriptor : descriptors_) {
      if (nowhere < 0 || ::dup3(nowhere, descriptor, O_CLOEXEC) < 0) ::close(descriptor);
    }
    if (nowhere >= 0) ::close(nowhere);
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<int> descriptors_;
};

}  // namespace

Socket::Socket(int descriptor) : descriptor_(descriptor) {
  if (is_open()) OpenSockets::all().add(descriptor);
}

void Socket::close() {
  if (is_open()) OpenSockets::all().close(std::exchange(descriptor_, -1));
}

std::size_t Socket::write_some(std::span<iovec> parts) const { return send_parts(descriptor_, parts, MSG_DONTWAIT); }

std::size_t Socket::write(std::span<iovec> parts) const { return send_parts(descriptor_, parts, 0); }

std::size_t Socket::read(void* data, std::size_t room) const {
  while (true) {
    const ssize_t got = ::recv(descriptor_, data, room, 0);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) fail("recv");
  }
}

bool Socket::read_all(void* data, std::size_t bytes, Clock::time_point until) const {
  std::size_t done = 0;
  while (done < bytes) {
    if (!wait_to_read(until)) return false;
    const std::size_t got = read(static_cast<char*>(data) + done, bytes - done);
    if (got == 0) return false;
    done += got;
  }
  return true;
}

bool Socket::wait_to_read(Clock::time_point until) const { return wait_for(descriptor_, POLLIN, until); }

bool Socket::is_hung_up() const {
  pollfd one{descriptor_, POLLRDHUP, 0};
  return ::poll(&one, 1, 0) > 0;
}

void Socket::end_writing() const { ::shutdown(descriptor_, SHUT_WR); }

void Socket::break_off() const { ::shutdown(descriptor_, SHUT_RDWR); }

std::string Address::to_text() const {
  std::string text = host + " " + std::to_string(port);
  for (const std::string& number : numbers) text += " " + number;
  return text;
}

Address Address::from_text(const std::string& text) {
  Address address;
  std::istringstream words(text);
  words >> address.host >> address.port;
  for (std::string number; words >> number;) address.numbers.push_back(number);
  return address;
}

Listener::Listener() : socket_(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_any;
  if (socket_.is_open()) set(socket_.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (!socket_.is_open() || ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&six), sizeof six) != 0) {
    socket_ = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(INADDR_ANY);
    if (!socket_.is_open()) fail("socket");
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&four), sizeof four) != 0) fail("bind");
  }
  if (::listen(socket_.get(), SOMAXCONN) != 0) fail("listen");
}

Address Listener::address() const {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) fail("getsockname");
  const std::uint16_t port = own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                                       : reinterpret_cast<const sockaddr_in&>(own).sin_port;
  return {host_identity(), ntohs(port), own_numbers()};
}

Socket Listener::accept(Clock::time_point until) const {
  while (wait_for(socket_.get(), POLLIN, until)) {
    Socket socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.is_open()) {
      if (errno == EMFILE || errno == ENFILE) fail("accept");
      continue;  // whoever came has gone again
    }
    prepare(socket.get());
    return socket;
  }
  return {};
}

Socket connect_to(const Address& address, const std::function<bool(const Socket&)>& is_right, Clock::time_point until) {
  std::vector<std::string> numbers = address.numbers;
  if (address.host == host_identity()) numbers.insert(numbers.begin(), {"127.0.0.1", "::1"});
  while (Clock::now() < until) {
    bool has_met_others = false;
    for (const std::string& number : numbers) {
      constexpr auto kOneTry = std::chrono::seconds(3);  // an address that leads nowhere does not answer at all
      Socket socket = connect_to(number, address.port, std::min<Clock::time_point>(until, Clock::now() + kOneTry));
      if (!socket.is_open()) continue;
      if (is_right(socket)) return socket;
      has_met_others = true;
    }
    if (numbers.empty() || has_met_others) return {};
    ::usleep(50'000);
  }
  return {};
}

}  // namespace stagecraft::sockets

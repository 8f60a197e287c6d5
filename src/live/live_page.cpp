#include "stagecraft/live/live_page.h"

#include <httplib.h>
#include <pthread.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <csignal>
#include <random>
#include <thread>

#include "board.h"
#include "stagecraft/core/error.h"
#include "stagecraft/page/built_page.h"

namespace stagecraft {
namespace {

constexpr int kMostPortsTried = 100;
constexpr int kThreads = 24;
constexpr int kMostStreams = 16;  // the other threads stay free for pages and for clients that say nothing
constexpr std::chrono::milliseconds kHeartbeat(1000);
constexpr std::chrono::milliseconds kBetweenEvents(100);
constexpr int kLowestPriority = 19;

std::string random_token() {
  std::random_device source;
  std::string token;
  for (int i = 0; i < 32; ++i) token += "0123456789abcdef"[source() % 16];
  return token;
}

/// Whether the texts are equal, in a time that does not tell where they differ.
bool is_token(const std::string& given, const std::string& token) {
  if (given.size() != token.size()) return false;
  int different = 0;
  for (std::size_t i = 0; i < token.size(); ++i) different |= given[i] ^ token[i];
  return different == 0;
}

/// Leaves the signals of the process to its other threads; a broken connection is then an error of its write.
void block_signals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

/// The library makes its server ignore SIGPIPE for the whole process; this puts back what was there.
class KeptSigpipe {
 public:
  KeptSigpipe() { ::sigaction(SIGPIPE, nullptr, &before_); }
  KeptSigpipe(const KeptSigpipe&) = delete;
  KeptSigpipe& operator=(const KeptSigpipe&) = delete;
  ~KeptSigpipe() { ::sigaction(SIGPIPE, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

}  // namespace

class LivePage::Implementation {
 public:
  explicit Implementation(const LiveOptions& options) : token_(random_token()) {
    if (options.port < 1 || options.port > 65535) {
      throw InvalidArgument("a page at port " + std::to_string(options.port) +
                            " is not possible: give one from 1 to 65535");
    }
    const std::array<PageFile, 1> files = {{{"stagecraft-live", "events?token=" + token_}}};
    page_ = built_page(files);
    {
      const KeptSigpipe kept;
      server_ = std::make_unique<httplib::Server>();
    }
    configure();
    bind(options);
    thread_ = std::thread([this] {
      block_signals();
      ::setpriority(PRIO_PROCESS, 0, kLowestPriority);  // of this thread, and of those that it starts
      server_->listen_after_bind();
    });
    while (!server_->is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  ~Implementation() {
    board_.close();
    // Who reads is told of the end; who does not is not waited for.
    for (int i = 0; i < 100 && streams_ > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    server_->stop();
    thread_.join();
  }

  const std::string& url() const { return url_; }
  int port() const { return port_; }
  bool is_watched() const { return streams_ > 0; }
  void publish(const std::string& name, std::string json) { board_.put(name, std::move(json)); }

 private:
  void configure() {
    server_->new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_->set_keep_alive_max_count(1);
    server_->set_read_timeout(2);
    server_->set_write_timeout(2);
    server_->set_payload_max_length(1024);
    // Without SO_REUSEPORT, which the library sets: two runs must not share a port.
    server_->set_socket_options([](socket_t socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_->set_default_headers({{"Cache-Control", "no-store"}, {"Referrer-Policy", "no-referrer"}});
    server_->Get("/", [this](const httplib::Request& request, httplib::Response& response) {
      if (allow(request, response)) response.set_content(page_, "text/html; charset=utf-8");
    });
    server_->Get("/events", [this](const httplib::Request& request, httplib::Response& response) {
      if (allow(request, response)) stream(response);
    });
  }

  bool allow(const httplib::Request& request, httplib::Response& response) const {
    if (is_token(request.get_param_value("token"), token_)) return true;
    response.status = 403;
    response.set_content("This page needs the token of the URL that the run has printed.\n", "text/plain");
    return false;
  }

  void stream(httplib::Response& response) {
    if (++streams_ > kMostStreams) {
      --streams_;
      response.status = 503;
      response.set_content("Too many watch this run already.\n", "text/plain");
      return;
    }
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, seen = std::uint64_t{0}](std::size_t, httplib::DataSink& sink) mutable { return send_news(seen, sink); },
        [this](bool) { --streams_; });
  }

  /// Returns whether the connection goes on.
  bool send_news(std::uint64_t& seen, httplib::DataSink& sink) {
    std::string text;
    for (const auto& [name, news] : board_.wait(seen, kHeartbeat)) {
      text += "event: " + name + "\ndata: " + *news + "\n\n";  // JSON has no line ends here
    }
    if (text.empty()) text = ": still there\n\n";
    if (!sink.write(text.data(), text.size())) return false;
    if (board_.is_closed()) {
      constexpr std::string_view kEnd = "event: end\ndata: {}\n\n";
      sink.write(kEnd.data(), kEnd.size());
      sink.done();
      return true;
    }
    std::this_thread::sleep_for(kBetweenEvents);  // steps may take microseconds; nobody reads faster than this
    return true;
  }

  void bind(const LiveOptions& options) {
    for (port_ = options.port; port_ < options.port + kMostPortsTried && port_ <= 65535; ++port_) {
      if (!server_->bind_to_port(options.host, port_)) continue;
      const bool is_everywhere = options.host == "0.0.0.0";
      url_ = "http://" + (is_everywhere ? std::string("localhost") : options.host) + ":" + std::to_string(port_) +
             "/?token=" + token_;
      return;
    }
    throw InvalidArgument("no port from " + std::to_string(options.port) + " on can be opened at '" + options.host +
                          "': give another port, or a host that is this machine");
  }

  std::string token_;
  std::string page_;
  std::string url_;
  int port_ = 0;
  detail::Board board_;
  std::atomic<int> streams_ = 0;
  std::unique_ptr<httplib::Server> server_;
  std::thread thread_;
};

LivePage::LivePage(const LiveOptions& options) : implementation_(std::make_unique<Implementation>(options)) {}
LivePage::~LivePage() = default;
const std::string& LivePage::url() const { return implementation_->url(); }
int LivePage::port() const { return implementation_->port(); }
bool LivePage::is_watched() const { return implementation_->is_watched(); }
void LivePage::publish(const std::string& name, std::string json) { implementation_->publish(name, std::move(json)); }

}  // namespace stagecraft

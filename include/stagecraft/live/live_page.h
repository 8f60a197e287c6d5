#pragma once

#include <memory>
#include <string>

/// A page that shows a run while it trains, served by this process.
namespace stagecraft {

struct LiveOptions {
  int port = 8080;  ///< The first one tried; if it is in use, the next one is.
  /// Where to listen. With the default, only programs of this machine can connect.
  std::string host = "127.0.0.1";
};

/// Serves the page that `make page` built to whoever knows the token in its URL, and sends it what is published as
/// server-sent events. Its threads have the lowest priority, and a client that is slow, never reads or vanishes costs
/// only its own connection.
class LivePage {
 public:
  /// Starts to listen. Throws InvalidArgument when no port can be opened or Stagecraft was built without cpp-httplib,
  /// FileError when the page was not built.
  explicit LivePage(const LiveOptions& options);
  /// Ends all connections.
  ~LivePage();
  LivePage(const LivePage&) = delete;
  LivePage& operator=(const LivePage&) = delete;

  /// With the token: "http://127.0.0.1:8080/?token=..."
  [[nodiscard]] const std::string& url() const;
  [[nodiscard]] int port() const;
  /// Whether anybody watches.
  [[nodiscard]] bool is_watched() const;

  /// Sends `json` to all clients as the event `name`; new clients get the last one of each name. Never waits for a
  /// client: one that falls behind gets only the newest. Any thread may call it.
  void publish(const std::string& name, std::string json);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft

#include "stagecraft/live/live_page.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "stagecraft/core/error.h"
#include "stagecraft/page/built_page.h"
#include "support/scratch_folder.h"

namespace stagecraft {
namespace {

/// A page that is only its mark, where the library looks for it.
class LivePageTest : public ::testing::Test {
 protected:
  LivePageTest() {
    std::ofstream(path_) << R"(<html><script type="application/json" id="embedded">[]</script></html>)";
    ::setenv("STAGECRAFT_PAGE", path_.c_str(), 1);
  }
  ~LivePageTest() override { ::unsetenv("STAGECRAFT_PAGE"); }

  ScratchFolder folder_;
  std::string path_ = folder_.path("page.html");
};

/// A client that says what it likes and reads as much as it likes.
class Client {
 public:
  Client(int port, const std::string& says) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    if (connected_ && !says.empty()) connected_ = ::send(socket_, says.data(), says.size(), MSG_NOSIGNAL) > 0;
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { ::close(socket_); }

  [[nodiscard]] bool is_connected() const { return connected_; }
  /// Reads until `part` has come, or the connection ends.
  std::string read_until(const std::string& part) {
    std::string text;
    char block[4096];
    while (text.find(part) == std::string::npos) {
      const ssize_t got = ::recv(socket_, block, sizeof block, 0);
      if (got <= 0) break;
      text.append(block, static_cast<std::size_t>(got));
    }
    return text;
  }

 private:
  int socket_;
  bool connected_ = false;
};

std::string get(const std::string& path) {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
}

std::string token_of(const LivePage& page) { return page.url().substr(page.url().find("token=")); }

constexpr int kPort = 28080;

TEST_F(LivePageTest, ThePageNeedsItsToken) {
  const LivePage page({.port = kPort});
  EXPECT_EQ(page.url().find("http://127.0.0.1:" + std::to_string(page.port()) + "/?token="), 0U);
  EXPECT_NE(Client(page.port(), get("/?" + token_of(page))).read_until("</html>").find("stagecraft-live"),
            std::string::npos);
  for (const char* path : {"/", "/?token=", "/?token=00000000000000000000000000000000", "/events"}) {
    EXPECT_NE(Client(page.port(), get(path)).read_until("printed").find(" 403 "), std::string::npos) << path;
  }
}

TEST_F(LivePageTest, APortInUseGivesTheNext) {
  const LivePage first({.port = kPort});
  const LivePage second({.port = first.port()});
  EXPECT_GT(second.port(), first.port());
  EXPECT_NE(token_of(first), token_of(second));
}

TEST_F(LivePageTest, NewClientsGetTheLastOfEachEvent) {
  LivePage page({.port = kPort});
  page.publish("step", "{\"step\":1}");
  page.publish("step", "{\"step\":2}");
  page.publish("ranks", "[]");
  Client client(page.port(), get("/events?" + token_of(page)));
  const std::string text = client.read_until("\"step\":2}");
  EXPECT_NE(text.find("text/event-stream"), std::string::npos);
  EXPECT_EQ(text.find("\"step\":1"), std::string::npos);
  EXPECT_NE(text.find("event: ranks"), std::string::npos);
  EXPECT_TRUE(page.is_watched());
  page.publish("step", "{\"step\":3}");
  EXPECT_NE(client.read_until("\"step\":3}").find("event: step"), std::string::npos);
}

TEST_F(LivePageTest, ClientsThatVanishOrNeverReadHoldUpNobody) {
  LivePage page({.port = kPort});
  const std::string large(200'000, 'x');
  const Client deaf(page.port(), get("/events?" + token_of(page)));
  for (int i = 0; i < 100; ++i) {
    const Client gone(page.port(), i % 2 == 0 ? get("/events?" + token_of(page)) : "");
    EXPECT_TRUE(gone.is_connected());
    const auto before = std::chrono::steady_clock::now();
    page.publish("large", "\"" + large + "\"");
    // No time of the machine is asserted: to wait for a client would take the two seconds of its timeout.
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(1500));
  }
  page.publish("step", "{\"step\":4}");
  EXPECT_NE(Client(page.port(), get("/?" + token_of(page))).read_until("</html>").find("stagecraft-live"),
            std::string::npos);
}

TEST_F(LivePageTest, EndsItsConnections) {
  std::optional<LivePage> page(std::in_place, LiveOptions{.port = kPort});
  Client client(page->port(), get("/events?" + token_of(*page)));
  page->publish("step", "1");
  client.read_until("event: step");
  page.reset();
  EXPECT_NE(client.read_until("event: end").find("event: end"), std::string::npos);
}

TEST_F(LivePageTest, WhatCannotBeIsRefused) {
  EXPECT_THROW(LivePage({.port = 70000}), InvalidArgument);
  EXPECT_THROW(LivePage({.port = kPort, .host = "203.0.113.1"}),
               InvalidArgument);  // of documentation: not this machine
  ::setenv("STAGECRAFT_PAGE", "/nowhere/page.html", 1);
  EXPECT_THROW(LivePage({.port = kPort}), FileError);
}

TEST_F(LivePageTest, FilesInThePageCannotEndTheirScript) {
  const std::vector<PageFile> files = {{"</script>.csv", "0F0,\"</script>\n"}};
  const std::string page = built_page(files);
  EXPECT_EQ(page.find("</script>"), page.rfind("</script>"));
  EXPECT_NE(page.find("\\u003c/script>"), std::string::npos);
}

}  // namespace
}  // namespace stagecraft

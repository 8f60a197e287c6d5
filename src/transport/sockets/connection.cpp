#include <sstream>
#include <system_error>

#include "coordinator.h"
#include "nccl/library.h"
#include "random_word.h"
#include "socket_channel.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/identity.h"
#include "stagecraft/transport/sockets.h"

namespace stagecraft {

bool uses_nccl(const at::Device& device) { return device.is_cuda() && nccl::library() != nullptr; }

namespace {

using sockets::Address;
using sockets::Clock;
using sockets::Line;
using sockets::Socket;
using sockets::SocketChannel;

/// Known only to the ranks of one world: whoever else finds the port is turned away.
constexpr std::size_t kSecretBytes = 32;

/// How a rank introduces itself to another.
struct Greeting {
  char secret[kSecretBytes];
  std::int32_t from;
  std::int32_t to;
};

/// What a rank tells the others. One line each; none of them contains a line break.
struct Card {
  std::string version;
  std::string nccl;  // how it sends tensors of a device; all ranks must agree
  std::string secret;
  Address address;

  [[nodiscard]] std::string to_text() const { return version + "\n" + nccl + "\n" + secret + "\n" + address.to_text(); }
  static Card from_text(const std::string& text) {
    Card card;
    std::istringstream lines(text);
    std::string address;
    std::getline(lines, card.version);
    std::getline(lines, card.nccl);
    std::getline(lines, card.secret);
    std::getline(lines, address);
    card.address = Address::from_text(address);
    return card;
  }
};

void check_alike(const std::vector<Card>& cards, RankId own) {
  for (std::size_t r = 0; r < cards.size(); ++r) {
    const Card& mine = cards[own.index()];
    const std::string who = "rank " + std::to_string(r);
    if (cards[r].version != mine.version) {
      throw TransportError("the ranks run different versions of Stagecraft, " + who + " " + cards[r].version +
                               ", rank " + std::to_string(own.value) + " " + mine.version +
                               ": install the same everywhere",
                           RankId(r));
    }
    if (cards[r].nccl != mine.nccl) {
      const auto text = [](const std::string& nccl) { return nccl.empty() ? "not by NCCL" : "by NCCL " + nccl; };
      throw TransportError("the ranks send tensors of a device in different ways, " + who + " " + text(cards[r].nccl) +
                               ", rank " + std::to_string(own.value) + " " + text(mine.nccl) +
                               ": let all compute on the same type of device, with the same NCCL",
                           RankId(r));
    }
  }
}

/// A connection to every other rank: each calls those before it, and is called by those after it.
std::vector<Socket> connect_all(RankId own, const std::vector<Card>& cards, const sockets::Listener& listener,
                                Timeout limit) {
  const auto until = Clock::now() + limit;
  const auto seconds = std::to_string(std::chrono::duration_cast<std::chrono::seconds>(limit).count());
  const std::string& secret = cards[0].secret;
  std::vector<Socket> all(cards.size());
  Greeting greeting{};
  secret.copy(greeting.secret, kSecretBytes);
  greeting.from = own.value;
  for (std::size_t r = 0; r < own.index(); ++r) {
    std::string why;
    greeting.to = RankId(r).value;
    const auto answers = [&](const Socket& socket) {
      try {
        char answer = 0;
        iovec part{&greeting, sizeof greeting};
        return socket.write({&part, 1}) == sizeof greeting && socket.read_all(&answer, 1, until);
      } catch (const std::system_error& error) {  // it is another program, or has died meanwhile
        why = std::string("; ") + error.what();
        return false;
      }
    };
    all[r] = connect_to(cards[r].address, answers, until);
    if (!all[r].is_open()) {
      throw TransportError("rank " + std::to_string(own.value) + " cannot reach rank " + std::to_string(r) +
                               " by TCP (" + cards[r].address.to_text() + why + ") within " + seconds +
                               " s: is it running, and does a firewall allow it? STAGECRAFT_SOCKET_IFNAME names the"
                               " network interface to use",
                           RankId(r));
    }
  }
  for (std::size_t left = cards.size() - own.index() - 1; left > 0;) {
    Socket caller = listener.accept(until);
    if (!caller.is_open()) {
      std::string missing;
      for (std::size_t r = own.index() + 1; r < all.size(); ++r) {
        if (!all[r].is_open()) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
      }
      throw TransportError("rank " + missing + " has not connected to rank " + std::to_string(own.value) + " within " +
                               seconds + " s: is it running, and does a firewall allow it?",
                           own);
    }
    Greeting other{};
    constexpr auto kManners = std::chrono::seconds(5);
    try {
      if (!caller.read_all(&other, sizeof other, std::min<Clock::time_point>(until, Clock::now() + kManners))) continue;
      if (std::string_view(other.secret, kSecretBytes) != secret || other.to != own.value) continue;
      const RankId who(other.from);
      if (who <= own || who.index() >= all.size() || all[who.index()].is_open()) continue;
      char answer = 1;
      iovec part{&answer, 1};
      if (caller.write({&part, 1}) != 1) continue;
      all[who.index()] = std::move(caller);
      --left;
    } catch (const std::system_error&) {  // somebody who is gone again
      continue;
    }
  }
  return all;
}

}  // namespace

class SocketConnection::Implementation {
 public:
  SocketChannel* channel = nullptr;  // owned by the transport
  std::vector<std::shared_ptr<Line>> lines;
  std::shared_ptr<nccl::Watch> nccl;
  Timeout limit{};
  bool has_departed = false;
  bool has_left = false;
  bool has_failed_device = false;  // found when it left
};

SocketConnection::SocketConnection(RankId rank, int ranks, const Exchange& exchange, Options options)
    : implementation_(std::make_unique<Implementation>()) {
  const bool by_nccl = options.device && uses_nccl(*options.device);
  if (by_nccl && ranks > 1) nccl::prepare(*options.device);
  const sockets::Listener listener;
  const Card own{std::string(version()), by_nccl ? nccl::version_text() : "", random_word(kSecretBytes),
                 listener.address()};
  std::vector<Card> cards;
  for (const std::string& text : exchange(own.to_text())) cards.push_back(Card::from_text(text));
  if (cards.size() != static_cast<std::size_t>(ranks)) {
    throw TransportError("the exchange of addresses gave " + std::to_string(cards.size()) + " texts for " +
                             std::to_string(ranks) + " ranks",
                         rank);
  }
  check_alike(cards, rank);
  std::vector<Socket> sockets = connect_all(rank, cards, listener, options.limit);

  implementation_->limit = options.limit;
  if (by_nccl) implementation_->nccl = std::make_shared<nccl::Watch>(*options.device, options.limit);
  const std::shared_ptr<nccl::Watch>& nccl = implementation_->nccl;
  auto channel =
      std::make_unique<SocketChannel>(rank, std::move(sockets), options.device, nccl, std::move(options.while_waiting));
  implementation_->channel = channel.get();
  for (const auto& line : channel->lines()) {
    if (line) implementation_->lines.push_back(line);
  }
  std::unique_ptr<Channel> whole = std::move(channel);
  if (options.wrap) whole = options.wrap(std::move(whole));
  transport_ = std::make_shared<Transport>(std::move(whole), std::move(options.activity));
  Coordinator* coordinator = &transport_->coordinator();
  // A rank whose program has ended is not lost to the coordinator; but what NCCL moves to or from it may be.
  const auto lose_transfers = [coordinator, rank](RankId other, const std::string& text) {
    coordinator->lose(other, text);
    if (!coordinator->lost() && !coordinator->failed_departure()) coordinator->lose(rank, text);
  };
  // A thread that is inside NCCL may hold what telling others needs.
  const auto give_up = [coordinator, nccl, rank](const std::string& text) {
    coordinator->give_up({rank, text}, [&] {
      if (nccl) nccl->abort_all();
    });
  };
  implementation_->channel->start({[coordinator, nccl, lose_transfers](RankId lost, const std::string& text) {
                                     if (!nccl) return coordinator->lose(lost, text);
                                     lose_transfers(lost, text);
                                     nccl->abort_all();  // what waits for it on the device never ends
                                   },
                                   [coordinator] { return coordinator->failed_departure().has_value(); },
                                   [give_up](const std::string& text) { give_up(text); }});
  if (!nccl) return;
  const auto lose_members = [lose_transfers, rank](const std::vector<RankId>& members, const std::string& text) {
    std::string others;
    RankId blamed = rank;
    for (const RankId member : members) {
      if (member == rank) continue;
      if (blamed == rank) blamed = member;
      others += (others.empty() ? "" : ", ") + std::to_string(member.value);
    }
    lose_transfers(blamed, text + ": rank " + others + " does not answer");
  };
  // The watch aborts everything itself.
  nccl->start(lose_members, [coordinator, rank](const std::string& error, const std::function<void()>& abort_all) {
    coordinator->give_up({rank, "rank " + std::to_string(rank.value) + ": " + error}, abort_all);
  });
}

SocketConnection::~SocketConnection() {
  leave(std::nullopt, std::chrono::seconds(5));
  if (!implementation_->nccl) return;
  implementation_->nccl->abort_all();
  implementation_->nccl->stop();  // what it reports to is gone next
}

void SocketConnection::leave(const std::optional<std::string>& failure, Timeout patience) {
  if (implementation_->has_left) return;
  implementation_->has_left = true;
  if (!implementation_->has_departed) transport_->depart(failure);
  implementation_->has_departed = true;
  // Others may still read on their device what this rank has sent.
  const std::shared_ptr<nccl::Watch>& nccl = implementation_->nccl;
  constexpr auto kBriefly = std::chrono::milliseconds(200);  // after a failure it may never come
  const auto in_time = Clock::now() + (failure || !nccl ? kBriefly : nccl->limit());
  // Whether it is so in time; after a failure anywhere it may never be.
  const auto waits_until = [&](const auto& is_so_by) {
    constexpr auto kOften = std::chrono::milliseconds(20);
    while (!is_so_by(std::min<Clock::time_point>(in_time, Clock::now() + kOften))) {
      const Coordinator& coordinator = transport_->coordinator();
      if (Clock::now() >= in_time || coordinator.lost() || coordinator.failed_departure()) return;
    }
  };
  if (nccl) waits_until([&](Clock::time_point until) { return nccl->wait_until_idle(until); });
  if (const auto error = nccl && !failure ? nccl::error_of(nccl->device()) : std::nullopt) {
    implementation_->has_failed_device = true;
    const RankId own = implementation_->channel->rank();
    transport_->coordinator().give_up({own, "rank " + std::to_string(own.value) + ": " + *error});
  }
  implementation_->channel->say_goodbye();
  const auto until = Clock::now() + patience;
  for (const auto& line : implementation_->lines) {
    if (!line->wait_until_sent(until)) return;
  }
  if (!nccl) return;
  for (const auto& line : implementation_->lines) {
    waits_until([&](Clock::time_point moment) { return line->wait_until_released(moment); });
  }
}

bool SocketConnection::finish(const std::optional<std::string>& failure) {
  constexpr Timeout kPatience = std::chrono::seconds(5);
  Coordinator& coordinator = transport_->coordinator();
  if (failure) {
    leave(failure, kPatience);
    (void)wait_for_others(std::chrono::milliseconds(500));  // they read why before the connection is gone
    return false;
  }
  transport_->depart(failure);
  implementation_->has_departed = true;
  coordinator.wait_for_departures(std::max(kPatience, implementation_->limit));
  leave(failure, kPatience);
  // Their devices may be behind by the limit at most; one that is lost does not leave.
  (void)wait_for_others(coordinator.lost() ? kPatience : kPatience + implementation_->limit);
  return !coordinator.lost() && !coordinator.failed_departure() && !implementation_->has_failed_device;
}

std::optional<std::string> SocketConnection::lost() const {
  const std::optional<Failure> lost = transport_->coordinator().lost();
  return lost ? std::optional(lost->message) : std::nullopt;
}

bool SocketConnection::wait_for_others(Timeout patience) {
  const auto until = Clock::now() + patience;
  for (const auto& line : implementation_->lines) {
    if (!line->wait_until_over(until)) return false;
  }
  return true;
}

}  // namespace stagecraft

#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "conformance/delaying_channel.h"
#include "conformance/loopback_group.h"
#include "conformance/relocating_channel.h"
#include "stagecraft/core/error.h"
#include "stagecraft/transport/c10d.h"
#include "stagecraft/transport/local.h"
#include "stagecraft/transport/message_group.h"
#include "support/message_of.h"
#include "support/patience.h"
#include "support/processes.h"

/// The transports under test. A new one adds a line to `fabrics`.
namespace stagecraft::conformance {

using namespace std::chrono_literals;
using testing::HasSubstr;

/// Starts the ranks of one kind of transport and runs `program` on each.
using Runner = std::function<void(int ranks, const std::function<void(Transport&)>& program)>;

inline void run_local(int ranks, const std::function<void(Transport&)>& program) {
  LocalFabric fabric(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] { program(*fabric.connect(RankId(r))); });
  }
  for (std::thread& thread : threads) thread.join();
}

inline void run_delaying(int ranks, const std::function<void(Transport&)>& program) {
  LocalFabric fabric(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Transport transport(std::make_unique<DelayingChannel>(fabric.channel(RankId(r)), static_cast<unsigned>(r)));
      program(transport);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline void run_sockets(int ranks, const std::function<void(Transport&)>& program) {
  const auto loopback = std::make_shared<Loopback>(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const SocketConnection connection(
          RankId(r), ranks, exchange_by(c10::make_intrusive<LoopbackGroup>(loopback, r, ranks), std::nullopt), {});
      program(*connection.transport());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline void run_processes(int ranks, const std::function<void(Transport&)>& program) {
  ASSERT_EQ(ranks, processes());
  program(*ProcessEnvironment::transport());
}

/// The device that messages travel between; none: the host.
inline std::optional<at::Device> test_device() { return processes() > 0 ? ProcessEnvironment::device() : std::nullopt; }

[[maybe_unused]] inline const bool kRelocates = [] {
  if (const auto device = test_device(); device && !device->is_cpu()) {
    ProcessEnvironment::wrap() = [device](std::unique_ptr<Channel> inner) {
      return std::make_unique<RelocatingChannel>(std::move(inner), *device);
    };
  }
  return true;
}();

/// A group as a world has it, of these ranks.
inline std::unique_ptr<Group> group_of(Transport& transport, const std::vector<RankId>& members) {
  std::unique_ptr<Group> group = transport.make_group(members, kPatience);
  const auto device = test_device();
  if (group && device && !device->is_cpu()) return std::make_unique<RelocatingGroup>(std::move(group), *device);
  return group;
}

struct Fabric {
  std::string name;
  Runner run;
};

inline void PrintTo(const Fabric& fabric, std::ostream* out) { *out << fabric.name; }

inline std::vector<Fabric> fabrics() {
  if (processes() > 0) return {{"Processes", run_processes}};
  return {{"Local", run_local}, {"Delaying", run_delaying}, {"Sockets", run_sockets}};
}

/// The transports that can have this number of ranks in this run.
inline std::vector<Fabric> fabrics_of(int ranks) {
  return processes() > 0 && processes() != ranks ? std::vector<Fabric>() : fabrics();
}

inline std::vector<int> numbers_of_ranks() {
  if (processes() > 0) return {processes()};
  return {1, 2, 3, 5};
}

inline Tag tag(int microbatch, MessageKind kind = MessageKind::kForward) {
  return {kind, StageId(0), StageId(1), MicrobatchId(microbatch)};
}

inline at::Tensor pattern(std::int64_t size, at::ScalarType type, std::int64_t seed) {
  return (at::arange(size, at::kLong) * 7 + seed).remainder(100).to(type);
}

/// Tests with a fixed number of ranks, for any transport.
template <int kRanks>
class Rules : public testing::TestWithParam<Fabric> {
 protected:
  void run(const std::function<void(Transport&)>& program) { GetParam().run(kRanks, program); }
};
using RulesForTwo = Rules<2>;
using RulesForThree = Rules<3>;
using RulesForFour = Rules<4>;

/// Repeats `settle` while it is aborted, which may happen after a timeout.
inline std::optional<Failure> settle_when_all_have_come(Transport& transport) {
  for (int i = 0; i < 20; ++i) {
    try {
      return transport.settle(kPatience);
    } catch (const AbortedError&) {
      continue;
    }
  }
  return std::nullopt;
}

}  // namespace stagecraft::conformance

// What every transport must do, over numbers of ranks, sizes, orders and types. By itself the program tests ranks as
// threads; under mpirun it tests processes, those cases that want as many ranks as were started. A new transport adds a
// line to `fabrics`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <random>
#include <thread>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/group.h"
#include "stagecraft/transport/local.h"
#include "support/message_of.h"
#include "support/mpi_world.h"

namespace stagecraft {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr Timeout kLong = 20s;

/// Starts the ranks of one kind of transport and runs `program` on each.
using Runner = std::function<void(int ranks, const std::function<void(Transport&)>& program)>;

void run_local(int ranks, const std::function<void(Transport&)>& program) {
  LocalFabric fabric(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] { program(*fabric.connect(RankId(r))); });
  }
  for (std::thread& thread : threads) thread.join();
}

void run_mpi(int ranks, const std::function<void(Transport&)>& program) {
  ASSERT_EQ(ranks, processes());
  program(*MpiEnvironment::transport());
}

struct Fabric {
  std::string name;
  Runner run;
};

void PrintTo(const Fabric& fabric, std::ostream* out) { *out << fabric.name; }

std::vector<Fabric> fabrics() {
  if (processes() > 0) return {{"Mpi", run_mpi}};
  return {{"Local", run_local}};
}

/// Those that can have so many ranks in this run.
std::vector<Fabric> fabrics_of(int ranks) {
  return processes() > 0 && processes() != ranks ? std::vector<Fabric>() : fabrics();
}

std::vector<int> numbers_of_ranks() {
  if (processes() > 0) return {processes()};
  return {1, 2, 3, 5};
}

Tag tag(int microbatch, Channel channel = Channel::kForward) {
  return {channel, StageId(0), StageId(1), MicrobatchId(microbatch)};
}

at::Tensor pattern(std::int64_t size, at::ScalarType type, std::int64_t seed) {
  return (at::arange(size, at::kLong) * 7 + seed).remainder(100).to(type);
}

using Case = std::tuple<Fabric, int /*ranks*/, std::int64_t /*size*/, at::ScalarType>;

class Exchange : public testing::TestWithParam<Case> {};

TEST_P(Exchange, EveryoneToEveryoneInAnyOrder) {
  const auto& [fabric, ranks, size, type] = GetParam();
  constexpr int kMessages = 6;
  fabric.run(ranks, [&, ranks = ranks, size = size, type = type](Transport& transport) {
    EXPECT_EQ(transport.ranks(), ranks);
    const int me = transport.rank().value;
    std::vector<std::pair<int, int>> sends, receives;
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == me) continue;
      for (int m = 0; m < kMessages; ++m) {
        sends.emplace_back(peer, m);
        receives.emplace_back(peer, m);
      }
    }
    std::mt19937 random(static_cast<unsigned>(me));
    std::shuffle(sends.begin(), sends.end(), random);
    std::shuffle(receives.begin(), receives.end(), random);
    for (const auto& [peer, m] : receives) transport.post_receive(RankId(peer), tag(m));
    for (const auto& [peer, m] : sends) {
      transport.send(RankId(peer), tag(m),
                     {{pattern(size, type, me * 1000 + peer * 10 + m), at::Tensor()}, "from " + std::to_string(me)});
    }
    for (const auto& [peer, m] : receives) {
      const Message message = transport.receive(RankId(peer), tag(m), kLong);
      ASSERT_EQ(message.tensors.size(), 2U);
      EXPECT_TRUE(at::equal(message.tensors[0], pattern(size, type, peer * 1000 + me * 10 + m)));
      EXPECT_EQ(message.tensors[0].scalar_type(), type);
      EXPECT_FALSE(message.tensors[1].defined()) << "a place that holds nothing arrived as something";
      EXPECT_EQ(message.header, "from " + std::to_string(peer));
    }
    EXPECT_FALSE(transport.settle(kLong).has_value());
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, Exchange,
                         testing::Combine(testing::ValuesIn(fabrics()), testing::ValuesIn(numbers_of_ranks()),
                                          testing::Values(0, 1, 17, 70'000),
                                          testing::Values(at::kFloat, at::kDouble, at::kLong, at::kBFloat16,
                                                          at::kBool)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" + std::to_string(std::get<1>(test.param)) +
                                  "ranks_" + std::to_string(std::get<2>(test.param)) + "_" +
                                  c10::toString(std::get<3>(test.param));
                         });

template <int kRanks>
class Rules : public testing::TestWithParam<Fabric> {
 protected:
  void run(const std::function<void(Transport&)>& program) { GetParam().run(kRanks, program); }
};
using RulesForTwo = Rules<2>;
using RulesForThree = Rules<3>;
using RulesForFour = Rules<4>;

TEST_P(RulesForTwo, TagsKeepMessagesApart) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    for (const Channel channel : {Channel::kForward, Channel::kBackward}) {
      for (int m = 0; m < 3; ++m) {
        transport.send(peer, tag(m, channel), {{at::full({1}, m + (channel == Channel::kForward ? 0 : 10))}, ""});
      }
    }
    for (int m = 2; m >= 0; --m) {
      EXPECT_EQ(transport.receive(peer, tag(m, Channel::kBackward), kLong).tensors[0].item<int>(), m + 10);
      EXPECT_EQ(transport.receive(peer, tag(m, Channel::kForward), kLong).tensors[0].item<int>(), m);
    }
    transport.settle(kLong);
  });
}

TEST_P(RulesForTwo, SendingDoesNotWaitForTheReceiver) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    for (int m = 0; m < 50; ++m) transport.send(peer, tag(m), {{at::ones({1000})}, ""});
    for (int m = 0; m < 50; ++m) transport.receive(peer, tag(m), kLong);
    transport.settle(kLong);
  });
}

TEST_P(RulesForTwo, WantedGradientsTravelWithTheTensor) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    transport.send(peer, tag(0), {{at::ones({2}).requires_grad_(true), at::ones({2})}, ""});
    const Message message = transport.receive(peer, tag(0), kLong);
    EXPECT_TRUE(message.tensors[0].requires_grad());
    EXPECT_TRUE(message.tensors[0].is_leaf());
    EXPECT_FALSE(message.tensors[1].requires_grad());
    transport.settle(kLong);
  });
}

TEST_P(RulesForTwo, ASentTensorIsReleasedOnceItIsReceived) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    at::Tensor tensor = at::ones({1000});
    const c10::weak_intrusive_ptr<c10::StorageImpl> storage(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
    transport.send(peer, tag(0), {{std::move(tensor)}, ""});
    tensor = at::Tensor();
    transport.receive(peer, tag(0), kLong);
    transport.settle(kLong);
    EXPECT_TRUE(storage.expired());
  });
}

TEST_P(RulesForTwo, AWaitThatTakesTooLongSaysForWhat) {
  run([](Transport& transport) {
    if (transport.rank() == RankId(0)) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_THAT(
          message_of([&] { transport.receive(RankId(1), tag(4), 100ms); }),
          HasSubstr("rank 0 waited 100 ms for the activation of microbatch 4 from stage 0 to stage 1 from rank 1"));
      EXPECT_GE(std::chrono::steady_clock::now() - begin, 100ms);
    }
    EXPECT_FALSE(transport.settle(kLong).has_value()) << "a timeout alone is not a failure of the transport";
  });
}

TEST_P(RulesForFour, AbortEndsAllWaitingAndTheNextStepWorks) {
  run([](Transport& transport) {
    for (int round = 0; round < 3; ++round) {
      if (transport.rank() == RankId(2)) {
        std::this_thread::sleep_for(20ms);
        transport.send(RankId(0), tag(round + 10), {{at::ones({1})}, ""});  // nobody will want it
        transport.abort({RankId(2), "something broke"});
      } else {
        try {
          transport.receive(RankId(2), tag(0), kLong);
          ADD_FAILURE() << "a message came that was never sent";
        } catch (const AbortedError& error) {
          EXPECT_STREQ(error.what(), "something broke");
          EXPECT_EQ(error.peer(), RankId(2));
        }
      }
      const auto failure = transport.settle(kLong);
      ASSERT_TRUE(failure.has_value());
      EXPECT_EQ(failure->rank, RankId(2));
      // As new: what was sent before is gone, what is sent now arrives.
      const RankId next((transport.rank().value + 1) % 4), previous((transport.rank().value + 3) % 4);
      transport.send(next, tag(0), {{at::full({1}, transport.rank().value)}, ""});
      EXPECT_EQ(transport.receive(previous, tag(0), kLong).tensors[0].item<int>(), previous.value);
      EXPECT_FALSE(transport.settle(kLong).has_value());
    }
  });
}

TEST_P(RulesForThree, SettlingWaitsForAllAndSaysWhoIsMissing) {
  run([](Transport& transport) {
    if (transport.rank() == RankId(1)) {
      std::this_thread::sleep_for(400ms);
    } else {
      EXPECT_THAT(message_of([&] { transport.settle(100ms); }), HasSubstr("for the end of the step on rank"));
    }
    EXPECT_FALSE(transport.settle(kLong).has_value());
  });
}

TEST_P(RulesForTwo, AMessageMayBeLargerThanTwoGigabytes) {
  run([](Transport& transport) {
    constexpr std::int64_t kSize = (std::int64_t{1} << 31) + 5;
    if (transport.rank() == RankId(0)) {
      at::Tensor large = at::empty({kSize}, at::kByte);
      for (const std::int64_t at : {std::int64_t{0}, kSize / 2, kSize - 1}) large[at] = at % 251;
      transport.send(RankId(1), tag(0), {{std::move(large)}, ""});
    } else {
      const at::Tensor large = transport.receive(RankId(0), tag(0), kLong).tensors[0];
      ASSERT_EQ(large.numel(), kSize);
      for (const std::int64_t at : {std::int64_t{0}, kSize / 2, kSize - 1}) EXPECT_EQ(large[at].item<int>(), at % 251);
    }
    transport.settle(kLong);
  });
}

TEST_P(RulesForTwo, ThereIsNoSuchRank) {
  run([](Transport& transport) {
    EXPECT_THAT(message_of([&] { transport.send(RankId(2), tag(0), {}); }), HasSubstr("ranks 0 to 1"));
    transport.settle(kLong);
  });
}

// --- groups ---

using GroupCase = std::tuple<Fabric, int /*ranks*/>;

class Groups : public testing::TestWithParam<GroupCase> {
 protected:
  /// On all ranks, with a group of all.
  void run(const std::function<void(Transport&, Group&)>& program) {
    const auto& [fabric, ranks] = GetParam();
    fabric.run(ranks, [&](Transport& transport) {
      std::vector<RankId> all;
      for (int r = 0; r < transport.ranks(); ++r) all.emplace_back(r);
      Group group(transport, all, transport.new_group_id(), kLong);
      program(transport, group);
      EXPECT_FALSE(transport.settle(kLong).has_value());
    });
  }
};

/// What `all_reduce` and the others should give, from what all members have.
at::Tensor expected_reduction(const std::vector<at::Tensor>& all, Reduction reduction) {
  const at::Tensor stacked = at::stack(all).to(at::kDouble);
  if (reduction == Reduction::kMax) return std::get<0>(stacked.max(0));
  return reduction == Reduction::kSum ? stacked.sum(0) : stacked.mean(0);
}

TEST_P(Groups, ReduceWhatAllHave) {
  run([](Transport&, Group& group) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
      for (const std::int64_t size : {0, 1, 2, 7, 30'000}) {
        for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMax}) {
          if (type == at::kLong && reduction == Reduction::kMean) continue;
          std::vector<at::Tensor> all;
          for (int r = 0; r < group.size(); ++r) all.push_back(pattern(size, type, 13 * r));
          const at::Tensor expected = expected_reduction(all, reduction);
          const at::Tensor own = all[static_cast<std::size_t>(group.place())].clone();
          group.all_reduce(own, reduction);
          EXPECT_TRUE(at::allclose(own.to(at::kDouble), expected, type == at::kBFloat16 ? 4e-3 : 1e-6))
              << c10::toString(type) << ' ' << size;
          EXPECT_EQ(own.scalar_type(), type);
        }
      }
    }
  });
}

TEST_P(Groups, AReductionIsTheSameBitForBitOnAllAndInTheOrderOfTheGroup) {
  run([](Transport&, Group& group) {
    std::vector<at::Tensor> all;
    for (int r = 0; r < group.size(); ++r) all.push_back(at::arange(10'001).add(r).sin().exp().to(at::kFloat));
    at::Tensor expected = all[0].clone();
    for (std::size_t r = 1; r < all.size(); ++r) expected += all[r];
    const at::Tensor own = all[static_cast<std::size_t>(group.place())].clone();
    group.all_reduce(own);
    EXPECT_TRUE(at::equal(own, expected));
  });
}

TEST_P(Groups, ATensorMayBeChangedAsSoonAsTheCallReturns) {
  run([](Transport&, Group& group) {
    const int n = group.size();
    for (int round = 0; round < 20; ++round) {
      const double own = 100 * round + group.place();
      double sum = 0;
      for (int r = 0; r < n; ++r) sum += 100 * round + r;

      const at::Tensor reduced = at::full({5000}, own, at::kDouble);
      group.all_reduce(reduced);
      EXPECT_TRUE((reduced == sum).all().item<bool>());
      reduced.fill_(-1);

      const at::Tensor part = at::full({700}, own, at::kDouble);
      const at::Tensor gathered = group.all_gather(part);
      part.fill_(-1);
      for (int r = 0; r < n; ++r) EXPECT_TRUE((gathered.narrow(0, 700 * r, 700) == 100 * round + r).all().item<bool>());

      const at::Tensor whole = at::full({n, 600}, own, at::kDouble);
      const at::Tensor scattered = group.reduce_scatter(whole);
      whole.fill_(-1);
      EXPECT_TRUE((scattered == sum).all().item<bool>());
      EXPECT_EQ(scattered.sizes(), (std::vector<std::int64_t>{1, 600}));

      const int from = round % n;
      const at::Tensor told = at::full({3000}, own, at::kDouble);
      group.broadcast_into(told, from);
      EXPECT_TRUE((told == 100 * round + from).all().item<bool>());
      told.fill_(-1);
    }
  });
}

TEST_P(Groups, ReduceTensorsThatAreNotContiguous) {
  run([](Transport&, Group& group) {
    const at::Tensor own = at::arange(60, at::kDouble).view({6, 10}).t();
    const at::Tensor once = own.clone();
    group.all_reduce(own);
    EXPECT_TRUE(at::equal(own, once * group.size()));
  });
}

TEST_P(Groups, MessagesGoToOneOrToAll) {
  run([](Transport&, Group& group) {
    const std::string own = "words of " + std::to_string(group.place());
    for (int one = 0; one < group.size(); ++one) {
      EXPECT_EQ(group.broadcast({{}, own}, one).header, "words of " + std::to_string(one));
      const auto collected = group.collect({{at::full({2}, group.place())}, own}, one);
      ASSERT_EQ(collected.size(), one == group.place() ? static_cast<std::size_t>(group.size()) : 0U);
      for (std::size_t r = 0; r < collected.size(); ++r) {
        EXPECT_EQ(collected[r].header, "words of " + std::to_string(r));
        EXPECT_EQ(collected[r].tensors.at(0)[1].item<int>(), static_cast<int>(r));
      }
    }
    const auto all = group.all_gather(own);
    const auto messages = group.all_gather(Message{{}, own});
    ASSERT_EQ(all.size(), static_cast<std::size_t>(group.size()));
    for (std::size_t r = 0; r < all.size(); ++r) {
      EXPECT_EQ(all[r], "words of " + std::to_string(r));
      EXPECT_EQ(messages[r].header, all[r]);
    }
  });
}

TEST_P(Groups, NoRankLeavesABarrierBeforeTheLastHasCome) {
  run([](Transport& transport, Group& group) {
    using Clock = std::chrono::steady_clock;
    const RankId last(transport.ranks() - 1);
    if (transport.rank() == last) std::this_thread::sleep_for(60ms);
    const std::string came = std::to_string(Clock::now().time_since_epoch().count());
    group.barrier();
    const auto left = Clock::now().time_since_epoch().count();
    const auto all = group.all_gather(came);
    EXPECT_GE(left, std::stoll(all.back()));
  });
}

TEST_P(Groups, GroupsOfTheSameRanksDoNotMixEvenFromTwoThreads) {
  run([](Transport& transport, Group& group) {
    // Also a world cut into two groups that know nothing of each other.
    std::vector<RankId> alike;
    for (int r = transport.rank().value % 2; r < transport.ranks(); r += 2) alike.emplace_back(r);
    Group half(transport, alike, transport.new_group_id(), kLong);
    std::thread beside([&] {
      for (int i = 0; i < 50; ++i) {
        const at::Tensor one = at::ones({1000});
        half.all_reduce(one);
        EXPECT_TRUE((one == half.size()).all().item<bool>());
      }
    });
    for (int i = 0; i < 50; ++i) {
      const at::Tensor two = at::full({1000}, 2.0F);
      group.all_reduce(two);
      EXPECT_TRUE((two == 2 * group.size()).all().item<bool>());
    }
    beside.join();
  });
}

TEST_P(Groups, ASingleRankNeedsNobody) {
  run([](Transport& transport, Group&) {
    Group alone(transport, {transport.rank()}, 0, kLong);
    const at::Tensor tensor = at::ones({3});
    alone.all_reduce(tensor, Reduction::kMean);
    EXPECT_TRUE(at::equal(alone.reduce_scatter(alone.all_gather(tensor)), at::ones({3})));
    alone.barrier();
  });
}

TEST_P(Groups, MistakesAreNamed) {
  run([](Transport& transport, Group& group) {
    const RankId own = transport.rank();
    EXPECT_THAT(message_of([&] { Group(transport, {own, own}, 0, kLong); }), HasSubstr("twice"));
    EXPECT_THAT(message_of([&] { Group(transport, {own, RankId(77)}, 0, kLong); }), HasSubstr("names rank 77"));
    EXPECT_THAT(message_of([&] { Group(transport, {}, 0, kLong); }), HasSubstr("without itself"));
    EXPECT_THAT(message_of([&] { group.broadcast({}, 99); }), HasSubstr("no member 99"));
    EXPECT_THAT(message_of([&] { group.all_reduce(at::ones({2}, at::kLong), Reduction::kMean); }),
                HasSubstr("floating point"));
    EXPECT_THAT(message_of([&] { group.reduce_scatter(at::ones({})); }), HasSubstr("equal parts"));
    EXPECT_THAT(message_of([&] { group.all_gather(at::ones({})); }), HasSubstr("dimension 0"));
  });
}

TEST_P(RulesForTwo, AGroupSaysWhichRanksDoNotAgreeAboutATensor) {
  run([](Transport& transport) {
    Group group(transport, {RankId(0), RankId(1)}, transport.new_group_id(), kLong);
    const at::Tensor own = at::ones({transport.rank() == RankId(0) ? 4 : 6});
    const std::string message = message_of([&] { group.broadcast_into(own, 0); });
    transport.abort({transport.rank(), "done"});
    if (transport.rank() == RankId(1)) {
      EXPECT_THAT(message, HasSubstr("rank 0 has Float [4], rank 1 has Float [6]"));
    }
    EXPECT_TRUE(transport.settle(kLong).has_value());
  });
}

TEST_P(RulesForFour, AGroupWorksAgainAfterAFailureInTheMiddleOfACollective) {
  run([](Transport& transport) {
    Group group(transport, {RankId(3), RankId(1), RankId(0), RankId(2)}, transport.new_group_id(), kLong);
    for (int round = 0; round < 3; ++round) {
      const at::Tensor one = at::ones({100});
      group.all_reduce(one);
      EXPECT_FALSE(transport.settle(kLong).has_value());
      if (transport.rank() == RankId(1)) {
        transport.abort({RankId(1), "something broke"});
      } else {
        EXPECT_THAT(message_of([&] {
                      for (int i = 0; i < 1000; ++i) group.all_reduce(one);
                    }),
                    HasSubstr("something broke"));
      }
      EXPECT_TRUE(transport.settle(kLong).has_value());
      const at::Tensor again = at::full({100}, transport.rank().value);
      group.all_reduce(again);
      EXPECT_TRUE((again == 6).all().item<bool>());
      EXPECT_FALSE(transport.settle(kLong).has_value());
    }
  });
}

std::string name_of(const testing::TestParamInfo<Fabric>& test) { return test.param.name; }

// Under mpirun, those for another number of ranks than were started have no fabric; a run for each number is in the
// tests.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RulesForTwo);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RulesForThree);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RulesForFour);
INSTANTIATE_TEST_SUITE_P(Transports, Groups,
                         testing::Combine(testing::ValuesIn(fabrics()), testing::ValuesIn(numbers_of_ranks())),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" + std::to_string(std::get<1>(test.param)) +
                                  "ranks";
                         });
INSTANTIATE_TEST_SUITE_P(Transports, RulesForTwo, testing::ValuesIn(fabrics_of(2)), name_of);
INSTANTIATE_TEST_SUITE_P(Transports, RulesForThree, testing::ValuesIn(fabrics_of(3)), name_of);
INSTANTIATE_TEST_SUITE_P(Transports, RulesForFour, testing::ValuesIn(fabrics_of(4)), name_of);

}  // namespace
}  // namespace stagecraft

// What every transport must do, over numbers of ranks, sizes, orders and types. Started alone, the program tests ranks
// as threads; under mpirun it tests processes, in the cases for the number of ranks that were started.

#include <ATen/ThreadLocalState.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <thread>

#include "conformance/fabrics.h"
#include "stagecraft/transport/no_messages.h"

namespace stagecraft::conformance {
namespace {

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
      const Message message = transport.receive(RankId(peer), tag(m), kPatience);
      ASSERT_EQ(message.tensors.size(), 2U);
      EXPECT_TRUE(at::equal(message.tensors[0], pattern(size, type, peer * 1000 + me * 10 + m)));
      EXPECT_EQ(message.tensors[0].scalar_type(), type);
      EXPECT_FALSE(message.tensors[1].defined()) << "a place that holds nothing arrived as something";
      EXPECT_EQ(message.header, "from " + std::to_string(peer));
    }
    EXPECT_FALSE(transport.settle(kPatience).has_value());
  });
}

std::string name_of_case(const testing::TestParamInfo<Case>& test) {
  const auto& [fabric, ranks, size, type] = test.param;
  return fabric.name + "_" + std::to_string(ranks) + "ranks_" + std::to_string(size) + "_" + c10::toString(type);
}
INSTANTIATE_TEST_SUITE_P(
    Transports, Exchange,
    testing::Combine(testing::ValuesIn(fabrics()), testing::ValuesIn(numbers_of_ranks()), testing::Values(0, 1, 17),
                     testing::Values(at::kFloat, at::kDouble, at::kLong, at::kBFloat16, at::kBool)),
    name_of_case);
INSTANTIATE_TEST_SUITE_P(LargeOnes, Exchange,
                         testing::Combine(testing::ValuesIn(fabrics()), testing::ValuesIn(numbers_of_ranks()),
                                          testing::Values(70'000), testing::Values(at::kFloat, at::kBFloat16)),
                         name_of_case);

TEST_P(RulesForTwo, TagsKeepMessagesApart) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    for (const MessageKind kind : {MessageKind::kForward, MessageKind::kBackward}) {
      for (int m = 0; m < 3; ++m) {
        transport.send(peer, tag(m, kind), {{at::full({1}, m + (kind == MessageKind::kForward ? 0 : 10))}, ""});
      }
    }
    for (int m = 2; m >= 0; --m) {
      EXPECT_EQ(transport.receive(peer, tag(m, MessageKind::kBackward), kPatience).tensors[0].item<int>(), m + 10);
      EXPECT_EQ(transport.receive(peer, tag(m, MessageKind::kForward), kPatience).tensors[0].item<int>(), m);
    }
    transport.settle(kPatience);
  });
}

TEST_P(RulesForTwo, MessagesWithOneTagComeInTheirOrder) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    for (int i = 0; i < 6; ++i) {
      transport.send(peer, tag(0), {{at::full({i % 2 == 0 ? 1 : 100'000}, i)}, std::to_string(i)});
      transport.send(peer, tag(i + 1), {{at::full({1}, 10 + i)}, ""});
    }
    for (int i = 5; i >= 3; --i) {
      EXPECT_EQ(transport.receive(peer, tag(i + 1), kPatience).tensors[0].item<int>(), 10 + i);
    }
    for (int i = 0; i < 6; ++i) {
      const Message message = transport.receive(peer, tag(0), kPatience);
      EXPECT_EQ(message.header, std::to_string(i));
      EXPECT_TRUE(message.tensors[0].eq(i).all().item<bool>()) << "message " << i << " has the tensor of another";
    }
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(transport.receive(peer, tag(i + 1), kPatience).tensors[0].item<int>(), 10 + i);
    }
    transport.settle(kPatience);
  });
}

TEST_P(RulesForTwo, SendingDoesNotWaitForTheReceiver) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    for (int m = 0; m < 50; ++m) transport.send(peer, tag(m), {{at::ones({1000})}, ""});
    for (int m = 0; m < 50; ++m) transport.receive(peer, tag(m), kPatience);
    transport.settle(kPatience);
  });
}

TEST_P(RulesForTwo, WantedGradientsTravelWithTheTensor) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    transport.send(peer, tag(0), {{at::ones({2}).requires_grad_(true), at::ones({2})}, ""});
    const Message message = transport.receive(peer, tag(0), kPatience);
    EXPECT_TRUE(message.tensors[0].requires_grad());
    EXPECT_TRUE(message.tensors[0].is_leaf());
    EXPECT_FALSE(message.tensors[1].requires_grad());
    transport.settle(kPatience);
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
    transport.receive(peer, tag(0), kPatience);
    transport.settle(kPatience);
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
    EXPECT_FALSE(transport.settle(kPatience).has_value()) << "a timeout alone is not a failure of the transport";
  });
}

TEST_P(RulesForFour, AbortEndsAllWaitingAndTheNextStepWorks) {
  run([](Transport& transport) {
    for (int round = 0; round < 3; ++round) {
      if (transport.rank() == RankId(2)) {
        std::this_thread::sleep_for(20ms);
        transport.send(RankId(0), tag(round + 10), {{at::ones({1})}, ""});  // never received
        transport.abort({RankId(2), "something broke"});
      } else {
        try {
          transport.receive(RankId(2), tag(0), kPatience);
          ADD_FAILURE() << "a message came that was never sent";
        } catch (const AbortedError& error) {
          EXPECT_STREQ(error.what(), "something broke");
          EXPECT_EQ(error.peer(), RankId(2));
        }
      }
      const auto failure = transport.settle(kPatience);
      ASSERT_TRUE(failure.has_value());
      EXPECT_EQ(failure->rank, RankId(2));
      // As new: messages sent before are gone, new ones arrive.
      const RankId next((transport.rank().value + 1) % 4), previous((transport.rank().value + 3) % 4);
      transport.send(next, tag(0), {{at::full({1}, transport.rank().value)}, ""});
      EXPECT_EQ(transport.receive(previous, tag(0), kPatience).tensors[0].item<int>(), previous.value);
      EXPECT_FALSE(transport.settle(kPatience).has_value());
    }
  });
}

/// Small and large: a transport may deliver the one at once and keep the other until it is asked for.
TEST_P(RulesForTwo, AMessageOfNoStepOutlivesFailedSteps) {
  run([](Transport& transport) {
    const auto sizes = {std::int64_t{3}, std::int64_t{300'000}};
    if (transport.rank() == RankId(1)) {
      for (const std::int64_t size : sizes) {
        transport.send_lasting(RankId(0), tag(static_cast<int>(size)), {{pattern(size, at::kFloat, size)}, ""});
      }
    }
    EXPECT_FALSE(transport.settle(kPatience).has_value());
    std::thread beside;  // waits for a message all the time
    if (transport.rank() == RankId(0)) {
      beside = std::thread(
          [&] { EXPECT_EQ(transport.receive_lasting(RankId(1), tag(1), kPatience).tensors[0].item<int>(), 1); });
    }
    for (int step = 0; step < 3; ++step) {
      if (transport.rank() == RankId(1)) transport.abort({RankId(1), "enough"});
      EXPECT_TRUE(transport.settle(kPatience).has_value());
    }
    if (transport.rank() == RankId(1)) {
      transport.send_lasting(RankId(0), tag(1), {{at::ones({1})}, ""});
    } else {
      beside.join();
      for (const std::int64_t size : sizes) {
        const Message message = transport.receive_lasting(RankId(1), tag(static_cast<int>(size)), kPatience);
        EXPECT_TRUE(at::equal(message.tensors[0], pattern(size, at::kFloat, size)));
      }
    }
    EXPECT_FALSE(transport.settle(kPatience).has_value());
  });
}

/// On a rank that computes elsewhere, tensors of a step arrive there. Those of no step are parts of a checkpoint, on
/// their way to a file: beside a step the device may have no room for them.
void expect_what_is_of_no_step_on_the_host(Transport& transport) {
  const RankId peer(1 - transport.rank().value);
  for (const std::int64_t size : {std::int64_t{3}, std::int64_t{300'000}}) {
    const at::Tensor sent = pattern(size, at::kFloat, size);
    transport.send(peer, tag(0), {{sent}, ""});
    transport.send_lasting(peer, tag(1), {{sent.to_sparse(), sent, at::empty({2}, at::TensorOptions(at::kMeta))}, ""});
    EXPECT_TRUE(transport.receive(peer, tag(0), kPatience).tensors[0].is_meta());
    const Message lasting = transport.receive_lasting(peer, tag(1), kPatience);
    EXPECT_TRUE(lasting.tensors[0].is_cpu());
    EXPECT_TRUE(lasting.tensors[0].is_sparse());
    ASSERT_TRUE(lasting.tensors[1].is_cpu());
    EXPECT_TRUE(at::equal(lasting.tensors[1], sent));
    EXPECT_TRUE(lasting.tensors[2].is_meta());
    EXPECT_FALSE(transport.settle(kPatience).has_value());
  }
}

// The meta device in place of a GPU. MPI would want one for the memory that it receives into.

TEST(MessagesOfNoStep, StayOnTheHostBetweenThreads) {
  LocalFabric fabric(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] { expect_what_is_of_no_step_on_the_host(*fabric.connect(RankId(r), at::kMeta)); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(MessagesOfNoStep, StayOnTheHostBetweenProcesses) {
  const auto loopback = std::make_shared<Loopback>(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const SocketConnection connection(RankId(r), 2,
                                        exchange_by(c10::make_intrusive<LoopbackGroup>(loopback, r, 2), std::nullopt),
                                        {.device = at::kMeta});
      expect_what_is_of_no_step_on_the_host(*connection.transport());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// What transports remember of earlier messages must not change what arrives: with more kinds of messages than they
/// remember, forms of any length, and failed steps with messages that nobody has received.
TEST_P(RulesForTwo, MessagesOfManyFormsArriveAsTheyWereSent) {
  run([](Transport& transport) {
    std::mt19937 random(7);  // the same on both ranks
    const auto text = [](std::size_t size, char letter) {
      return std::make_shared<const std::string>(std::string(size, letter));
    };
    const std::vector<std::shared_ptr<const std::string>> forms = {
        nullptr, text(0, ' '), text(9, 'a'), text(9, 'b'), text(1024, 'c'), text(1025, 'd'), text(40'000, 'e')};
    for (int step = 0; step < 6; ++step) {
      const bool fails = step % 3 == 1;
      for (int m = 0; m < 120; ++m) {
        const auto& form = forms[random() % (step == 5 ? 3 : forms.size())];
        const auto rows = static_cast<std::int64_t>(random() % (step == 5 ? 3 : 1500));
        const bool wants_gradient = random() % 2 == 0;
        const bool is_there = random() % 8 != 0;
        at::Tensor sent = pattern(2 * rows, at::kFloat, m).view({rows, 2});
        if (random() % 4 == 0) sent = sent.t();
        if (transport.rank() == RankId(0)) {
          const at::Tensor own = sent.clone(at::MemoryFormat::Preserve).set_requires_grad(wants_gradient);
          transport.send(RankId(1), tag(m), {{is_there ? own : at::Tensor(), at::full({1}, m)}, "", form});
        } else if (!fails || m < 50) {
          const Message message = transport.receive(RankId(0), tag(m), kPatience);
          ASSERT_EQ(message.tensors.size(), 2U);
          ASSERT_EQ(message.tensors[0].defined(), is_there);
          if (is_there) {
            EXPECT_TRUE(at::equal(message.tensors[0].detach(), sent));
            EXPECT_EQ(message.tensors[0].requires_grad(), wants_gradient);
          }
          EXPECT_EQ(message.tensors[1].item<int>(), m);
          ASSERT_EQ(message.form != nullptr, form != nullptr);
          if (form) {
            EXPECT_EQ(*message.form, *form);
          }
          EXPECT_EQ(message.header, "");
        }
      }
      if (fails && transport.rank() == RankId(1)) transport.abort({RankId(1), "enough"});
      EXPECT_EQ(transport.settle(kPatience).has_value(), fails);
    }
  });
}

#ifndef __SANITIZE_ADDRESS__  // which takes terabytes of addresses for itself
/// Limits the memory of this process to its present size plus this many bytes.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::uint64_t more) {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    const rlimit limit{pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) + more, before_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

// Only where messages are copied does receiving take memory.
TEST_P(RulesForTwo, ARankWithoutRoomForAMessageSaysSoAndTheNextStepWorks) {
  run([](Transport& transport) {
    // More than an allocator may have reserved for later.
    constexpr std::int64_t kSize = std::int64_t{1280} << 20;
    const std::string size = std::to_string(kSize);
    const bool takes_memory = processes() > 0 && !test_device();
    for (const bool is_posted : {false, true}) {
      if (transport.rank() == RankId(0)) {
        transport.receive(RankId(1), tag(2), kPatience);  // the other has set its limit
        transport.send(RankId(1), tag(0), {{at::zeros({kSize}, at::kChar), at::ones({2})}, ""});
      } else if (!takes_memory) {
        transport.send(RankId(0), tag(2), {});
      } else {
        const MemoryLimit limit(std::uint64_t{150} << 20);
        transport.send(RankId(0), tag(2), {});
        if (is_posted) transport.post_receive(RankId(0), tag(0));
        const std::string said = message_of([&] { transport.receive(RankId(0), tag(0), kPatience); });
        EXPECT_THAT(said, HasSubstr("rank 1 is out of memory: it has no room for " + size + " bytes (Char [" + size +
                                    "]) of the activation of microbatch 0 from stage 0 to stage 1 from rank 0"));
        transport.abort({RankId(1), said});
      }
      // The message that did not fit is dropped in small pieces.
      EXPECT_EQ(transport.settle(kPatience).has_value(), takes_memory);
      const RankId peer(1 - transport.rank().value);
      transport.send(peer, tag(1), {{at::ones({30'000})}, ""});
      EXPECT_TRUE(at::equal(transport.receive(peer, tag(1), kPatience).tensors[0], at::ones({30'000})));
      if (!takes_memory && transport.rank() == RankId(1)) transport.receive(RankId(0), tag(0), kPatience);
      EXPECT_FALSE(transport.settle(kPatience).has_value());
    }
  });
}

/// Nobody asks for it again, and no failed step drops it: its sender would hold it for good.
TEST_P(RulesForTwo, AMessageOfNoStepThatThereIsNoRoomForIsDropped) {
  if (processes() == 0 || test_device()) return;  // receiving takes no memory, or not this one's
  run([](Transport& transport) {
    constexpr std::int64_t kSize = std::int64_t{1280} << 20;
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> sent;
    if (transport.rank() == RankId(0)) {
      transport.receive(RankId(1), tag(2), kPatience);  // the other has set its limit
      at::Tensor large = at::zeros({kSize}, at::kChar);
      sent.emplace(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(large.storage().unsafeGetStorageImpl()));
      transport.send_lasting(RankId(1), tag(0), {{std::move(large)}, ""});
      large = at::Tensor();
      transport.receive(RankId(1), tag(3), kPatience);
    } else {
      const MemoryLimit limit(std::uint64_t{150} << 20);
      transport.send(RankId(0), tag(2), {});
      EXPECT_THAT(message_of([&] { transport.receive_lasting(RankId(0), tag(0), kPatience); }),
                  HasSubstr("rank 1 is out of memory: it has no room for " + std::to_string(kSize) + " bytes"));
      transport.send(RankId(0), tag(3), {});
    }
    EXPECT_FALSE(transport.settle(kPatience).has_value());
    const auto until = Channel::Clock::now() + kPatience;
    while (sent && !sent->expired() && Channel::Clock::now() < until) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(!sent || sent->expired());
    EXPECT_FALSE(transport.settle(kPatience).has_value());
  });
}
#endif

// After the one about too little memory: allocators keep what they had.
TEST_P(RulesForTwo, AMessageMayBeLargerThanTwoGigabytes) {
  run([](Transport& transport) {
    constexpr std::int64_t kSize = (std::int64_t{1} << 31) + 5;
    if (transport.rank() == RankId(0)) {
      at::Tensor large = at::empty({kSize}, at::kByte);
      for (const std::int64_t at : {std::int64_t{0}, kSize / 2, kSize - 1}) large[at] = at % 251;
      transport.send(RankId(1), tag(0), {{std::move(large)}, ""});
    } else {
      const at::Tensor large = transport.receive(RankId(0), tag(0), kPatience).tensors[0];
      ASSERT_EQ(large.numel(), kSize);
      for (const std::int64_t at : {std::int64_t{0}, kSize / 2, kSize - 1}) EXPECT_EQ(large[at].item<int>(), at % 251);
    }
    transport.settle(kPatience);
  });
}

TEST_P(RulesForTwo, ThereIsNoSuchRank) {
  run([](Transport& transport) {
    EXPECT_THAT(message_of([&] { transport.send(RankId(2), tag(0), {}); }), HasSubstr("ranks 0 to 1"));
    transport.settle(kPatience);
  });
}

TEST_P(RulesForTwo, NothingIsSentWhereMessagesAreRefused) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    const auto saying = [&] { return message_of([&] { transport.send(peer, tag(0), {}); }); };
    {
      const NoMessages refused("not while a step is captured");
      EXPECT_EQ(saying(), "not while a step is captured");
      std::string said;
      std::thread backward([&, here = at::ThreadLocalState()] {  // as autograd runs it on a GPU
        const at::ThreadLocalStateGuard same(here);
        said = saying();
      });
      backward.join();
      EXPECT_EQ(said, "not while a step is captured");
    }
    transport.send(peer, tag(0), {});
    transport.receive(peer, tag(0), kPatience);
    transport.settle(kPatience);
  });
}

std::string name_of(const testing::TestParamInfo<Fabric>& test) { return test.param.name; }

// Under mpirun, tests for another number of ranks have no fabric; the test list has a run for each number.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RulesForTwo);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RulesForThree);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RulesForFour);
INSTANTIATE_TEST_SUITE_P(Transports, RulesForTwo, testing::ValuesIn(fabrics_of(2)), name_of);
INSTANTIATE_TEST_SUITE_P(Transports, RulesForThree, testing::ValuesIn(fabrics_of(3)), name_of);
INSTANTIATE_TEST_SUITE_P(Transports, RulesForFour, testing::ValuesIn(fabrics_of(4)), name_of);

}  // namespace
}  // namespace stagecraft::conformance

// What every transport must do, over numbers of ranks, sizes, orders and types. By itself the program tests ranks as
// threads; under mpirun it tests processes, those cases that want as many ranks as were started. A new transport adds a
// line to `fabrics`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>
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
      std::this_thread::sleep_for(1s);
    } else {
      EXPECT_THAT(message_of([&] { transport.settle(100ms); }),
                  HasSubstr("for the end of the step on rank 1, which does not wait for any rank"));
    }
    EXPECT_FALSE(transport.settle(kLong).has_value());
  });
}

/// After a wait that took too long, a settlement that is given up soon may be repeated.
std::optional<Failure> settle_when_all_have_come(Transport& transport) {
  for (int i = 0; i < 20; ++i) {
    try {
      return transport.settle(kLong);
    } catch (const AbortedError&) {
      continue;
    }
  }
  return std::nullopt;
}

TEST_P(RulesForFour, ASlowRankIsNamedByAllThatWaitForEachOther) {
  run([](Transport& transport) {
    const RankId rank = transport.rank();
    const RankId slow(2), next((rank.value + 1) % 4);
    if (rank == slow) {
      std::this_thread::sleep_for(1500ms);
    } else {  // 3 waits for 0, 0 for 1, 1 for 2
      const auto begin = std::chrono::steady_clock::now();
      try {
        transport.receive(next, tag(0), 300ms);
        ADD_FAILURE() << "a message came that was never sent";
      } catch (const TimeoutError& error) {
        EXPECT_EQ(error.peer(), slow) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("rank 2, which does not wait for any rank"));
        transport.abort({rank, error.what()});
      } catch (const AbortedError& error) {
        EXPECT_THAT(error.what(), HasSubstr("rank 2, which does not wait for any rank"));
      }
      // The slow rank has had the whole timeout already: it is not given another one to come to the end of the step.
      EXPECT_THAT(message_of([&] { transport.settle(kLong); }), HasSubstr("look at what rank 2 does"));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 1300ms);
    }
    // By and by it comes, and all are together again.
    const auto failure = settle_when_all_have_come(transport);
    ASSERT_TRUE(failure.has_value());
    EXPECT_THAT(failure->message, HasSubstr("look at what rank 2 does"));
    transport.send(next, tag(0), {{at::full({1}, rank.value)}, ""});
    const RankId previous((rank.value + 3) % 4);
    EXPECT_EQ(transport.receive(previous, tag(0), kLong).tensors[0].item<int>(), previous.value);
    EXPECT_FALSE(transport.settle(kLong).has_value());
  });
}

TEST_P(RulesForTwo, RanksThatWaitForEachOtherAreToldSo) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    const std::string said = message_of([&] { transport.receive(peer, tag(0), 200ms); });
    EXPECT_THAT(said, HasSubstr("which waits for others that wait for it"));
    EXPECT_FALSE(transport.settle(kLong).has_value());
  });
}

TEST_P(RulesForTwo, AThreadBesideTheMainOneDoesNotHideThatARankIsSlow) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    Group group(transport, {RankId(0), RankId(1)}, transport.new_group_id(), Timeout(3s));
    if (transport.rank() == RankId(1)) {
      std::thread beside([&] { group.barrier(); });  // it waits for rank 0 all the time
      std::this_thread::sleep_for(800ms);
      beside.join();
    } else {
      EXPECT_THAT(message_of([&] { transport.receive(peer, tag(0), 200ms); }),
                  HasSubstr("rank 1, which does not wait for any rank"));
      // Now that its main thread has nothing to do, the other one counts.
      group.barrier();
    }
    EXPECT_FALSE(transport.settle(kLong).has_value());
  });
}

TEST_P(RulesForTwo, ARankThatRestsWaitsForWhatItsOtherThreadsWaitFor) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    Group group(transport, {RankId(0), RankId(1)}, transport.new_group_id(), Timeout(3s));
    if (transport.rank() == RankId(1)) {
      std::thread beside([&] { group.barrier(); });
      transport.set_resting(true);
      beside.join();
      transport.set_resting(false);
    } else {
      std::this_thread::sleep_for(100ms);
      EXPECT_THAT(message_of([&] { transport.receive(peer, tag(0), 200ms); }),
                  HasSubstr("which waits for others that wait for it"));
      group.barrier();
    }
    EXPECT_FALSE(transport.settle(kLong).has_value());
  });
}

TEST_P(RulesForTwo, AWaitOfACollectiveSaysWhatItIsFor) {
  run([](Transport& transport) {
    Group named(transport, {RankId(0), RankId(1)}, 7, 100ms);
    if (transport.rank() == RankId(0)) {
      EXPECT_THAT(message_of([&] {
                    const auto during = named.during("the average of the gradients of stage 3");
                    named.all_reduce(at::ones({4}));
                  }),
                  HasSubstr("rank 0 waited 100 ms for the average of the gradients of stage 3 from rank 1"));
      EXPECT_THAT(message_of([&] { named.all_reduce(at::ones({4})); }), HasSubstr("for the all_reduce of group 7 from"));
      EXPECT_THAT(message_of([&] { named.barrier(); }), HasSubstr("for the barrier of group 7 from rank 1"));
    } else {
      std::this_thread::sleep_for(1s);
    }
    transport.abort({transport.rank(), "done"});
    EXPECT_TRUE(settle_when_all_have_come(transport).has_value());
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

#ifndef __SANITIZE_ADDRESS__  // which takes terabytes of addresses for itself
/// Lets this process have only so many more bytes of memory than it has now.
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
    constexpr std::int64_t kSize = std::int64_t{300} << 20;
    for (const bool is_posted : {false, true}) {
      if (transport.rank() == RankId(0)) {
        transport.send(RankId(1), tag(0), {{at::zeros({kSize}, at::kChar), at::ones({2})}, ""});
      } else if (processes() > 0) {
        const MemoryLimit limit(std::uint64_t{150} << 20);
        if (is_posted) transport.post_receive(RankId(0), tag(0));
        const std::string said = message_of([&] { transport.receive(RankId(0), tag(0), kLong); });
        EXPECT_THAT(said, HasSubstr("rank 1 is out of memory: it has no room for 314572800 bytes (Char [314572800]) of "
                                    "the activation of microbatch 0 from stage 0 to stage 1 from rank 0"));
        transport.abort({RankId(1), said});
      }
      // What there was no room for is dropped in small pieces.
      EXPECT_EQ(transport.settle(kLong).has_value(), processes() > 0);
      const RankId peer(1 - transport.rank().value);
      transport.send(peer, tag(1), {{at::ones({30'000})}, ""});
      EXPECT_TRUE(at::equal(transport.receive(peer, tag(1), kLong).tensors[0], at::ones({30'000})));
      if (processes() == 0 && transport.rank() == RankId(1)) transport.receive(RankId(0), tag(0), kLong);
      EXPECT_FALSE(transport.settle(kLong).has_value());
    }
  });
}
#endif

TEST_P(RulesForTwo, ThereIsNoSuchRank) {
  run([](Transport& transport) {
    EXPECT_THAT(message_of([&] { transport.send(RankId(2), tag(0), {}); }), HasSubstr("ranks 0 to 1"));
    transport.settle(kLong);
  });
}

// --- tensors of every kind ---

struct KindOfTensor {
  std::string name;
  std::function<at::Tensor(int seed)> make;
};

at::Tensor numbers(at::IntArrayRef sizes, int seed, at::ScalarType type = at::kFloat) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  const at::Tensor real = pattern(count, at::kDouble, seed).view(sizes) - 40;
  if (!at::isComplexType(type)) return real.to(type);
  return at::complex(real, real.flip(0) * 3).to(type);
}

at::Tensor sparse_numbers(int seed) {
  const at::Tensor rows = at::tensor({3, 0, 3}, at::kLong);  // the same place twice: not coalesced
  const at::Tensor columns = at::tensor({1, 2, 1}, at::kLong);
  return at::sparse_coo_tensor(at::stack({rows, columns}), numbers({3, 2}, seed), {5, 4, 2});
}

std::vector<KindOfTensor> kinds_of_tensors() {
  std::vector<KindOfTensor> kinds;
  for (const std::int64_t size : {3, 90}) {  // inside the envelope of a message, and beside it
    const std::string by = "_" + std::to_string(size);
    kinds.push_back({"dense" + by, [=](int s) { return numbers({size, size}, s); }});
    kinds.push_back({"bool" + by, [=](int s) { return numbers({size, size}, s) > 0; }});
    kinds.push_back({"bf16" + by, [=](int s) { return numbers({size, size}, s, at::kBFloat16); }});
    kinds.push_back({"expanded" + by, [=](int s) { return numbers({size, 1}, s).expand({size, size}); }});
    kinds.push_back({"transposed" + by, [=](int s) { return numbers({size, 2 * size}, s).t(); }});
    kinds.push_back({"strided" + by, [=](int s) { return numbers({size, 2 * size}, s).slice(1, 1, 2 * size, 2); }});
    kinds.push_back({"inside another" + by, [=](int s) { return numbers({size + 2, size}, s).narrow(0, 1, size); }});
    kinds.push_back({"channels last" + by, [=](int s) {
                       return numbers({2, 3, size, size}, s).contiguous(at::MemoryFormat::ChannelsLast);
                     }});
    for (const at::ScalarType type : {at::kComplexFloat, at::kComplexDouble}) {
      const std::string complex = std::string(c10::toString(type)) + by;
      kinds.push_back({complex, [=](int s) { return numbers({size, size}, s, type); }});
      kinds.push_back({"conjugate " + complex, [=](int s) { return numbers({size, size}, s, type).conj(); }});
      kinds.push_back({"adjoint " + complex, [=](int s) { return numbers({size, 2 * size}, s, type).mH(); }});
      kinds.push_back({"imaginary part of a conjugate " + complex,
                       [=](int s) { return at::imag(numbers({size, size}, s, type).conj()); }});
    }
  }
  kinds.push_back({"one number", [](int s) { return numbers({}, s); }});
  kinds.push_back({"one conjugate", [](int s) { return numbers({1}, s, at::kComplexFloat)[0].conj(); }});
  kinds.push_back({"empty", [](int) { return at::empty({3, 0, 2}); }});
  kinds.push_back({"empty and transposed", [](int) { return at::empty({3, 0, 2}).transpose(0, 2); }});
  kinds.push_back({"only zeros", [](int) { return at::_efficientzerotensor({3, 4}, at::kFloat); }});
  kinds.push_back({"sparse", sparse_numbers});
  kinds.push_back({"sparse, coalesced", [](int s) { return sparse_numbers(s).coalesce(); }});
  kinds.push_back({"sparse without entries", [](int) { return at::zeros({4, 3}).to_sparse(); }});
  kinds.push_back({"sparse, large", [](int s) { return numbers({200, 200}, s).relu().to_sparse(); }});
  kinds.push_back({"sparse and complex", [](int s) { return numbers({4, 3}, s, at::kComplexFloat).to_sparse().conj(); }});
  kinds.push_back({"sparse by rows", [](int s) { return numbers({6, 4}, s).relu().to_sparse_csr(); }});
  kinds.push_back({"sparse by columns", [](int s) { return numbers({6, 4}, s).relu().to_sparse_csc(); }});
  kinds.push_back({"sparse by blocks of rows", [](int s) { return numbers({6, 4}, s).to_sparse_bsr({2, 2}); }});
  kinds.push_back({"sparse by blocks of columns", [](int s) { return numbers({6, 4}, s).to_sparse_bsc({3, 2}); }});
  return kinds;
}

void expect_alike(const at::Tensor& got, const at::Tensor& expected, const std::string& name) {
  ASSERT_TRUE(got.defined()) << name;
  EXPECT_EQ(got.layout(), expected.layout()) << name;
  EXPECT_EQ(got.scalar_type(), expected.scalar_type()) << name;
  EXPECT_EQ(got.sizes(), expected.sizes()) << name;
  EXPECT_EQ(got.requires_grad(), expected.requires_grad()) << name;
  if (expected.is_sparse()) {
    EXPECT_EQ(got.is_coalesced(), expected.is_coalesced()) << name;
    EXPECT_EQ(got.sparse_dim(), expected.sparse_dim()) << name;
    EXPECT_EQ(got._nnz(), expected._nnz()) << name;
  }
  const auto dense = [](const at::Tensor& tensor) {
    const at::Tensor plain = tensor.detach();
    return (plain.layout() == at::kStrided ? plain : plain.to_dense()).resolve_conj().resolve_neg().cpu();
  };
  EXPECT_TRUE(at::equal(dense(got), dense(expected))) << name;
}

TEST_P(RulesForTwo, TensorsOfEveryKindArriveAsTheyWere) {
  run([](Transport& transport) {
    const int me = transport.rank().value;
    const RankId peer(1 - me);
    const auto kinds = kinds_of_tensors();
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const auto seed = static_cast<int>(3 * k);
      const at::Tensor own = kinds[k].make(seed + me);
      const bool can_want = own.is_floating_point() || own.is_complex();
      transport.send(peer, tag(static_cast<int>(k)),
                     {{own.detach(), own.detach().set_requires_grad(can_want), at::Tensor()}, "kinds"});
      const Message got = transport.receive(peer, tag(static_cast<int>(k)), kLong);
      const at::Tensor expected = kinds[k].make(seed + peer.value);
      ASSERT_EQ(got.tensors.size(), 3U) << kinds[k].name;
      expect_alike(got.tensors[0], expected, kinds[k].name);
      expect_alike(got.tensors[1], expected.detach().set_requires_grad(can_want), kinds[k].name);
      EXPECT_FALSE(got.tensors[2].defined()) << kinds[k].name;
      EXPECT_EQ(got.header, "kinds");
    }
    EXPECT_FALSE(transport.settle(kLong).has_value());
  });
}

TEST_P(RulesForTwo, MemoryInTheOrderOfChannelsStaysSo) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    const at::Tensor images = at::ones({2, 3, 50, 40}).contiguous(at::MemoryFormat::ChannelsLast);
    transport.send(peer, tag(0), {{images}, ""});
    const at::Tensor got = transport.receive(peer, tag(0), kLong).tensors[0];
    EXPECT_TRUE(got.is_contiguous(at::MemoryFormat::ChannelsLast));
    transport.settle(kLong);
  });
}

TEST_P(RulesForTwo, TensorsWithoutMemoryArriveWithTheirShapes) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    transport.send(peer, tag(0), {{at::empty({300, 200}, at::device(at::kMeta).dtype(at::kHalf))}, ""});
    const at::Tensor got = transport.receive(peer, tag(0), kLong).tensors[0];
    EXPECT_TRUE(got.is_meta());
    EXPECT_EQ(got.sizes(), (std::vector<std::int64_t>{300, 200}));
    EXPECT_EQ(got.scalar_type(), at::kHalf);
    transport.settle(kLong);
  });
}

TEST_P(RulesForTwo, TensorsThatCannotTravelAreRefusedAlike) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    const at::Tensor quantized = at::quantize_per_tensor(at::ones({2, 3}), 0.1, 0, at::kQInt8);
    EXPECT_THAT(message_of([&] { transport.send(peer, tag(0), {{quantized}, ""}); }),
                HasSubstr("a quantized tensor (QInt8 [2, 3]) cannot be sent to another rank: send its dequantize()"));
    const at::Tensor nested = at::_nested_tensor_from_tensor_list({at::ones({2}), at::ones({3})});
    EXPECT_THAT(message_of([&] { transport.send(peer, tag(0), {{nested}, ""}); }),
                HasSubstr("a nested tensor (Float) cannot be sent to another rank: send its parts as a list"));
    EXPECT_FALSE(transport.settle(kLong).has_value());
  });
}

TEST_P(RulesForTwo, CollectivesTakeTensorsOfEveryKind) {
  run([](Transport& transport) {
    const int me = transport.rank().value;
    Group group(transport, {RankId(0), RankId(1)}, transport.new_group_id(), kLong);
    const auto kinds = kinds_of_tensors();
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const std::string& name = kinds[k].name;
      const auto seed = static_cast<int>(5 * k);
      const at::Tensor first = kinds[k].make(seed);
      const at::Tensor second = kinds[k].make(seed + 1);
      const at::Tensor& own = me == 0 ? first : second;
      const bool is_dense = own.layout() == at::kStrided;
      // A zero tensor and an expanded one cannot be written; compressed layouts have no cat.
      const bool is_writable = name.find("expanded") == std::string::npos && name != "only zeros";
      if (own.dim() > 0 && (is_dense || own.is_sparse())) {
        expect_alike(group.all_gather(own), at::cat({first, second}), "all_gather of " + name);
      }
      if (is_writable && (is_dense || own.is_sparse())) {
        const at::Tensor target = me == 0 ? first : kinds[k].make(seed + 2);
        group.broadcast_into(target, 0);
        expect_alike(target, first, "broadcast_into of " + name);
      }
      if (is_dense && is_writable && own.scalar_type() != at::kBool) {
        const at::Tensor sum = kinds[k].make(seed + me);
        group.all_reduce(sum);
        expect_alike(sum, first + second, "all_reduce of " + name);
        if (own.dim() > 0 && own.size(0) % 2 == 0) {
          expect_alike(group.reduce_scatter(own), (first + second).chunk(2)[static_cast<std::size_t>(me)],
                       "reduce_scatter of " + name);
        }
      }
    }
    EXPECT_THAT(message_of([&] { group.all_reduce(at::ones({3, 1}).expand({3, 3})); }), HasSubstr("give it a clone"));
    EXPECT_THAT(message_of([&] { group.broadcast_into(at::ones({3, 1}).expand({3, 3}), 0); }),
                HasSubstr("give it a clone"));
    EXPECT_THAT(message_of([&] { group.all_reduce(sparse_numbers(0)); }), HasSubstr("give its to_dense()"));
    EXPECT_FALSE(transport.settle(kLong).has_value());
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

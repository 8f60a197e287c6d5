// Collectives.

#include <c10/core/StreamGuard.h>

#include <atomic>

#include "conformance/fabrics.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft::conformance {
namespace {

using GroupCase = std::tuple<Fabric, int /*ranks*/>;

class Groups : public testing::TestWithParam<GroupCase> {
 protected:
  /// On all ranks, with a group of all.
  void run(const std::function<void(Transport&, Group&)>& program) {
    const auto& [fabric, ranks] = GetParam();
    fabric.run(ranks, [&](Transport& transport) {
      std::vector<RankId> all;
      for (int r = 0; r < transport.ranks(); ++r) all.emplace_back(r);
      const std::unique_ptr<Group> group = group_of(transport, all);
      program(transport, *group);
      EXPECT_FALSE(transport.settle(kPatience).has_value());
    });
  }
};

/// The expected results of `all_reduce` and the other collectives, from the inputs of all members.
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
  // The sums of NCCL are the same on all, in an order of its own.
  const bool has_own_order = test_device() && test_device()->is_cuda();
  run([=](Transport&, Group& group) {
    std::vector<at::Tensor> all;
    for (int r = 0; r < group.size(); ++r) all.push_back(at::arange(10'001).add(r).sin().exp().to(at::kFloat));
    at::Tensor expected = all[0].clone();
    for (std::size_t r = 1; r < all.size(); ++r) expected += all[r];
    const at::Tensor own = all[static_cast<std::size_t>(group.place())].clone();
    group.all_reduce(own);
    if (has_own_order) {
      EXPECT_TRUE(at::allclose(own, expected, 1e-6));
    } else {
      EXPECT_TRUE(at::equal(own, expected));
    }
    for (const at::Tensor& one : group.all_gather(own.unsqueeze(0)).unbind()) EXPECT_TRUE(at::equal(one, own));
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
    // Also in a world divided into two independent groups.
    std::vector<RankId> alike;
    for (int r = transport.rank().value % 2; r < transport.ranks(); r += 2) alike.emplace_back(r);
    const std::unique_ptr<Group> own_half = group_of(transport, alike);
    Group& half = *own_half;
    std::thread beside([&] {
      // On a device, two threads that share a stream would wait for each other's collectives.
      std::optional<c10::StreamGuard> stream;
      if (const auto device = test_device(); device && !device->is_cpu()) stream.emplace(new_stream(*device));
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

/// CUDA loads a kernel when it is used for the first time, and may wait for all that runs on the device meanwhile.
TEST_P(Groups, TwoGroupsWorkWhileKernelsAreUsedForTheFirstTime) {
  run([](Transport& transport, Group& group) {
    std::vector<RankId> alike;
    for (int r = transport.rank().value % 2; r < transport.ranks(); r += 2) alike.emplace_back(r);
    const std::unique_ptr<Group> half = group_of(transport, alike);
    const auto work = [](Group& own, at::ScalarType type) {
      const auto options = at::TensorOptions(test_device().value_or(at::kCPU)).dtype(type);
      at::Tensor sum = at::ones({1000}, options);
      const auto add_up = [&](const at::Tensor& more) {
        sum = at::ones({1000}, options) + 0 * more;
        own.all_reduce(sum);
      };
      using Function = at::Tensor (*)(const at::Tensor&);
      for (const Function function :
           {Function(at::sin),     Function(at::cos),    Function(at::tan),   Function(at::asin),
            Function(at::acos),    Function(at::atan),   Function(at::sinh),  Function(at::cosh),
            Function(at::asinh),   Function(at::acosh),  Function(at::atanh), Function(at::erf),
            Function(at::erfc),    Function(at::erfinv), Function(at::exp2),  Function(at::expm1),
            Function(at::log1p),   Function(at::log2),   Function(at::log10), Function(at::lgamma),
            Function(at::digamma), Function(at::i0),     Function(at::sinc),  Function(at::ceil),
            Function(at::floor),   Function(at::trunc),  Function(at::frac),  Function(at::sgn),
            Function(at::rsqrt),   Function(at::signbit)}) {
        add_up(function(sum).nan_to_num(0, 0, 0));
      }
      EXPECT_EQ(sum.mean().item<double>(), own.size());
    };
    std::thread beside([&] {
      std::optional<c10::StreamGuard> stream;
      if (const auto device = test_device(); device && !device->is_cpu()) stream.emplace(new_stream(*device));
      work(*half, at::kDouble);
    });
    work(group, at::kFloat);
    beside.join();
  });
}

TEST_P(Groups, ASingleRankNeedsNobody) {
  run([](Transport& transport, Group&) {
    MessageGroup alone(transport, {transport.rank()}, 0, kPatience);
    const at::Tensor tensor = at::ones({3});
    alone.all_reduce(tensor, Reduction::kMean);
    EXPECT_TRUE(at::equal(alone.reduce_scatter(alone.all_gather(tensor)), at::ones({3})));
    alone.barrier();
  });
}

TEST_P(Groups, MistakesAreNamed) {
  run([](Transport& transport, Group& group) {
    const RankId own = transport.rank();
    EXPECT_THAT(message_of([&] { MessageGroup(transport, {own, own}, 0, kPatience); }), HasSubstr("twice"));
    EXPECT_THAT(message_of([&] {
                  MessageGroup(transport, {own, RankId(77)}, 0, kPatience);
                }),
                HasSubstr("names rank 77"));
    EXPECT_THAT(message_of([&] { MessageGroup(transport, {}, 0, kPatience); }), HasSubstr("without itself"));
    EXPECT_THAT(message_of([&] { group.broadcast({}, 99); }), HasSubstr("no member 99"));
    EXPECT_THAT(message_of([&] { group.all_reduce(at::ones({2}, at::kLong), Reduction::kMean); }),
                HasSubstr("floating point"));
    EXPECT_THAT(message_of([&] { group.reduce_scatter(at::ones({})); }), HasSubstr("equal parts"));
    EXPECT_THAT(message_of([&] { group.all_gather(at::ones({})); }), HasSubstr("dimension 0"));
  });
}

TEST_P(RulesForTwo, AGroupSaysWhichRanksDoNotAgreeAboutATensor) {
  run([](Transport& transport) {
    const std::unique_ptr<Group> both = group_of(transport, {RankId(0), RankId(1)});
    Group& group = *both;
    const at::Tensor own = at::ones({transport.rank() == RankId(0) ? 4 : 6});
    const std::string message = message_of([&] { group.broadcast_into(own, 0); });
    transport.abort({transport.rank(), "done"});
    if (transport.rank() == RankId(1)) {
      EXPECT_THAT(message, HasSubstr("rank 0 has Float [4], rank 1 has Float [6]"));
    }
    EXPECT_TRUE(transport.settle(kPatience).has_value());
  });
}

TEST_P(RulesForFour, AGroupWorksAgainAfterAFailureInTheMiddleOfACollective) {
  run([](Transport& transport) {
    const std::unique_ptr<Group> all = group_of(transport, {RankId(3), RankId(1), RankId(0), RankId(2)});
    Group& group = *all;
    for (int round = 0; round < 3; ++round) {
      const at::Tensor one = at::ones({100});
      group.all_reduce(one);
      EXPECT_FALSE(transport.settle(kPatience).has_value());
      if (transport.rank() == RankId(1)) {
        transport.abort({RankId(1), "something broke"});
      } else {
        EXPECT_THAT(message_of([&] {
                      for (int i = 0; i < 1000; ++i) group.all_reduce(one);
                    }),
                    HasSubstr("something broke"));
      }
      EXPECT_TRUE(transport.settle(kPatience).has_value());
      const at::Tensor again = at::full({100}, transport.rank().value);
      group.all_reduce(again);
      EXPECT_TRUE((again == 6).all().item<bool>());
      EXPECT_FALSE(transport.settle(kPatience).has_value());
    }
  });
}

/// Whatever the moment, nobody is left waiting for a collective that others do not take part in, on the device either.
TEST_P(Groups, TheDeviceAnswersAfterAFailureAtAnyMomentOfACollective) {
  const auto& [fabric, ranks] = GetParam();
  if (ranks == 1) return;  // nobody waits
  const auto options = at::TensorOptions(test_device().value_or(at::kCPU));
  fabric.run(ranks, [&, ranks = ranks](Transport& transport) {
    std::vector<RankId> all;
    for (int r = 0; r < ranks; ++r) all.emplace_back(r);
    const std::unique_ptr<Group> group = transport.make_group(all, kPatience);
    for (int round = 0; round < 24; ++round) {
      const RankId failing(round % ranks);
      std::thread saboteur;
      std::atomic<bool> has_failed = false;  // this rank
      if (transport.rank() == failing) {
        saboteur = std::thread([&, delay = std::chrono::microseconds(61 * round)] {
          std::this_thread::sleep_for(delay);
          transport.abort({failing, "on purpose"});
          has_failed = true;
        });
      }
      const at::Tensor tensor = at::ones({1000}, options);
      const std::string said = message_of([&] {
        while (!has_failed) group->all_reduce(tensor, Reduction::kMean);
      });
      if (transport.rank() != failing) {
        EXPECT_THAT(said, HasSubstr("on purpose"));
      }
      if (saboteur.joinable()) saboteur.join();
      EXPECT_TRUE(transport.settle(kPatience).has_value());
      EXPECT_EQ(at::ones({3}, options).sum().item<int>(), 3);
      const at::Tensor rank = at::full({100}, static_cast<double>(transport.rank().value), options);
      group->all_reduce(rank);
      EXPECT_TRUE((rank == ranks * (ranks - 1) / 2).all().item<bool>());
      EXPECT_FALSE(transport.settle(kPatience).has_value());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, Groups,
                         testing::Combine(testing::ValuesIn(fabrics()), testing::ValuesIn(numbers_of_ranks())),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" + std::to_string(std::get<1>(test.param)) +
                                  "ranks";
                         });

}  // namespace
}  // namespace stagecraft::conformance

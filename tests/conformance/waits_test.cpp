// Waits that take too long: for messages, collectives and the ends of steps.

#include "conformance/fabrics.h"
#include "support/slow_motion.h"

namespace stagecraft::conformance {
namespace {

TEST_P(RulesForThree, SettlingWaitsForAllAndSaysWhoIsMissing) {
  run([](Transport& transport) {
    if (transport.rank() == RankId(1)) {
      std::this_thread::sleep_for(slowly(1s));
    } else {
      EXPECT_THAT(message_of([&] { transport.settle(slowly(100ms)); }),
                  HasSubstr("for the end of the step on rank 1, which does not wait for any rank"));
    }
    EXPECT_FALSE(transport.settle(kPatience).has_value());
  });
}

TEST_P(RulesForFour, ASlowRankIsNamedByAllThatWaitForEachOther) {
  run([](Transport& transport) {
    const RankId rank = transport.rank();
    const RankId slow(2), next((rank.value + 1) % 4);
    if (rank == slow) {
      std::this_thread::sleep_for(slowly(1500ms));
    } else {  // 3 waits for 0, 0 for 1, 1 for 2
      const auto begin = std::chrono::steady_clock::now();
      try {
        transport.receive(next, tag(0), slowly(300ms));
        ADD_FAILURE() << "a message came that was never sent";
      } catch (const TimeoutError& error) {
        EXPECT_EQ(error.peer(), slow) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("rank 2, which does not wait for any rank"));
        transport.abort({rank, error.what()});
      } catch (const AbortedError& error) {
        EXPECT_THAT(error.what(), HasSubstr("rank 2, which does not wait for any rank"));
      }
      // The slow rank has already had the whole timeout, and gets no second one to reach the end of the step.
      EXPECT_THAT(message_of([&] { transport.settle(kPatience); }), HasSubstr("look at what rank 2 does"));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, slowly(1300ms));
    }
    // Later it arrives, and all ranks are synchronised again.
    const auto failure = settle_when_all_have_come(transport);
    ASSERT_TRUE(failure.has_value());
    EXPECT_THAT(failure->message, HasSubstr("look at what rank 2 does"));
    transport.send(next, tag(0), {{at::full({1}, rank.value)}, ""});
    const RankId previous((rank.value + 3) % 4);
    EXPECT_EQ(transport.receive(previous, tag(0), kPatience).tensors[0].item<int>(), previous.value);
    EXPECT_FALSE(transport.settle(kPatience).has_value());
  });
}

TEST_P(RulesForTwo, RanksThatWaitForEachOtherAreToldSo) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    const std::string said = message_of([&] { transport.receive(peer, tag(0), slowly(200ms)); });
    EXPECT_THAT(said, HasSubstr("which waits for others that wait for it"));
    EXPECT_FALSE(transport.settle(kPatience).has_value());
  });
}

TEST_P(RulesForTwo, AThreadBesideTheMainOneDoesNotHideThatARankIsSlow) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    MessageGroup group(transport, {RankId(0), RankId(1)}, transport.new_group_id(), Timeout(slowly(3s)));
    if (transport.rank() == RankId(1)) {
      std::thread beside([&] { group.barrier(); });  // it waits for rank 0 all the time
      std::this_thread::sleep_for(slowly(800ms));
      beside.join();
    } else {
      EXPECT_THAT(message_of([&] { transport.receive(peer, tag(0), slowly(200ms)); }),
                  HasSubstr("rank 1, which does not wait for any rank"));
      // Lets rank 1's other thread finish.
      group.barrier();
    }
    EXPECT_FALSE(transport.settle(kPatience).has_value());
  });
}

TEST_P(RulesForTwo, ARankThatRestsWaitsForWhatItsOtherThreadsWaitFor) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    MessageGroup group(transport, {RankId(0), RankId(1)}, transport.new_group_id(), Timeout(slowly(3s)));
    if (transport.rank() == RankId(1)) {
      std::thread beside([&] { group.barrier(); });
      transport.set_resting(true);
      beside.join();
      transport.set_resting(false);
    } else {
      std::this_thread::sleep_for(slowly(100ms));
      EXPECT_THAT(message_of([&] { transport.receive(peer, tag(0), slowly(200ms)); }),
                  HasSubstr("which waits for others that wait for it"));
      group.barrier();
    }
    EXPECT_FALSE(transport.settle(kPatience).has_value());
  });
}

TEST_P(RulesForTwo, AWaitOfACollectiveSaysWhatItIsFor) {
  run([](Transport& transport) {
    MessageGroup named(transport, {RankId(0), RankId(1)}, 7, slowly(100ms));
    if (transport.rank() == RankId(0)) {
      EXPECT_THAT(message_of([&] {
                    const auto during = named.during("the average of the gradients of stage 3");
                    named.all_reduce(at::ones({4}));
                  }),
                  HasSubstr("rank 0 waited " + in_ms(slowly(100ms)) +
                            " for the average of the gradients of stage 3 from rank 1"));
      EXPECT_THAT(message_of([&] { named.all_reduce(at::ones({4})); }),
                  HasSubstr("for the all_reduce of group 7 from"));
      EXPECT_THAT(message_of([&] { named.barrier(); }), HasSubstr("for the barrier of group 7 from rank 1"));
    } else {
      std::this_thread::sleep_for(slowly(1s));
    }
    transport.abort({transport.rank(), "done"});
    EXPECT_TRUE(settle_when_all_have_come(transport).has_value());
  });
}

}  // namespace
}  // namespace stagecraft::conformance

// Lifetimes of activations, messages and outputs.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stagecraft/sim/simulator.h"
#include "stagecraft/stagecraft.h"
#include "support/patience.h"
#include "support/schedule_names.h"

namespace stagecraft {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

WeakStorage weak(const at::Tensor& tensor) {
  return WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
}

/// Bytes of one rank's tensors of interest that are alive.
class Ledger {
 public:
  void add(const at::Tensor& tensor) {
    entries_.emplace_back(weak(tensor), static_cast<std::int64_t>(tensor.nbytes()));
    std::int64_t alive = 0;
    for (const auto& [storage, bytes] : entries_) alive += storage.expired() ? 0 : bytes;
    peak_ = std::max(peak_, alive);
  }
  [[nodiscard]] std::int64_t peak() const { return peak_; }

 private:
  std::vector<std::pair<WeakStorage, std::int64_t>> entries_;
  std::int64_t peak_ = 0;
};

class LiveBytes : public testing::TestWithParam<std::string> {};

TEST_P(LiveBytes, NeverExceedTheSchedulesOwnBound) {
  constexpr std::int64_t kWidth = 8;
  const Generator& generator = find_generator(GetParam());
  for (const int ranks : {1, 2, 4}) {
    for (const int microbatches : {2, 8, 12}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(microbatches) + " microbatches");
      run_ranks({.ranks = ranks, .timeout = kPatience}, [&](World& world) {
        Ledger ledger;
        std::vector<Stage> stages;
        for (const StageId stage : stages_here(world, GetParam())) {
          const auto weight = at::eye(kWidth).requires_grad_(true);
          stages.emplace_back(
              stage.value,
              [&, weight](const StageCall& call) -> Value {
                const at::Tensor activation = call.tensor(0) * 1;  // kept for the weight gradient
                ledger.add(activation);
                return at::matmul(activation, weight);
              },
              NamedTensors{{"weight", weight}});
        }
        Pipeline pipeline(
            world, std::move(stages),
            {.schedule = GetParam(),
             .microbatches = microbatches,
             .loss = [](const Value& output, const Value&, const ValueDict&) { return output.tensor().sum(); }});
        const at::Tensor x = at::ones({microbatches, kWidth});
        pipeline.step({x}, {.target = x});
        const auto bound = peak_live_activations(pipeline.schedule())[world.rank().index()];
        EXPECT_LE(ledger.peak(), bound * kWidth * static_cast<std::int64_t>(sizeof(float)))
            << "rank " << world.rank().value << " of " << generator.name;
        EXPECT_GT(ledger.peak(), 0);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, LiveBytes, testing::ValuesIn(training_schedules()), test_name);

TEST(LiveBytes, OfMessagesDoNotGrowWithTheMicrobatches) {
  // 1F1B over two ranks: however many microbatches there are, at most two activations wait for the second rank.
  for (const int microbatches : {4, 32}) {
    run_ranks({.ranks = 2, .timeout = kPatience}, [&](World& world) {
      Ledger received;
      Pipeline pipeline(world,
                        {Stage(world.rank().value,
                               [&](const StageCall& call) -> Value {
                                 if (!world.is_first()) received.add(call.tensor(0));
                                 return call.tensor(0) * 2;
                               },
                               {})},
                        {.microbatches = microbatches, .loss = [](const Value& output, const Value&, const ValueDict&) {
                           return output.tensor().sum();
                         }});
      const at::Tensor x = at::ones({microbatches, 16}).requires_grad_(true);
      pipeline.step({x}, {.target = x});
      EXPECT_LE(received.peak(), 2 * 16 * static_cast<std::int64_t>(sizeof(float)));
    });
  }
}

}  // namespace
}  // namespace stagecraft

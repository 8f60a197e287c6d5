// Messages between ranks as threads, one on a GPU and one on the CPU. Needs a GPU: `make test-gpu`.

#include "bench/narrow_kernels.h"
#include "training.h"

namespace stagecraft::equivalence {
namespace {

class MixedDevices : public OnGpu {
 protected:
  /// Rank 0 on the GPU, rank 1 on the CPU.
  static void run(const std::function<void(World&)>& program) {
    run_ranks({.ranks = 2, .device = [](RankId rank) { return rank.value == 0 ? kGpu : at::Device(at::kCPU); }},
              program);
  }
  /// A tensor that the device has still to compute when this returns.
  static at::Tensor late(double value) {
    const at::Tensor zero = at::zeros({1 << 20}, at::TensorOptions(kGpu));
    return zero + bench::narrow_passes(bench::narrow_input(60, kGpu), 100).sum() * 0 + value;
  }
};

/// What arrives on the host is complete.
TEST_F(MixedDevices, AMessageToTheCpuIsThere) {
  run([](World& world) {
    const Tag tag{MessageKind::kForward, StageId(0), StageId(1), MicrobatchId(0)};
    for (int i = 1; i <= 5; ++i) {
      if (world.rank().value == 0) {
        world.transport().send(RankId(1), tag, {{late(i)}, {}, {}});
      } else {
        const Message got = world.transport().receive(RankId(0), tag, std::chrono::seconds(20));
        EXPECT_TRUE(got.tensors[0].is_cpu());
        EXPECT_TRUE(got.tensors[0].eq(i).all().item<bool>()) << i;
      }
    }
  });
}

TEST_F(MixedDevices, CollectivesReadWhatWasComputed) {
  run([](World& world) {
    const bool is_on_gpu = world.rank().value == 0;
    for (int i = 1; i <= 5; ++i) {
      at::Tensor tensor = is_on_gpu ? late(i) : at::full({1 << 20}, static_cast<double>(i));
      world.everyone().all_reduce(tensor);
      EXPECT_TRUE(tensor.eq(2 * i).all().item<bool>()) << i;
      at::Tensor copied = is_on_gpu ? late(i) : at::zeros({1 << 20});
      world.everyone().broadcast_into(copied, 0);
      if (is_on_gpu) {
        copied.fill_(-1);  // as soon as the call returns
      } else {
        EXPECT_TRUE(copied.eq(i).all().item<bool>()) << i;
      }
    }
  });
}

}  // namespace
}  // namespace stagecraft::equivalence

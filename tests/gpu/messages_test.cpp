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

/// Every element.
void expect_all(const at::Tensor& tensor, double value, const std::string& what) {
  const at::Tensor wrong = tensor.ne(value).nonzero().flatten();
  if (wrong.numel() == 0) return;
  const auto first = wrong[0].item<std::int64_t>();
  ADD_FAILURE() << what << ": " << wrong.numel() << " of " << tensor.numel() << " elements are not " << value
                << ": number " << first << " is " << tensor[first].item<double>();
}

/// What arrives on the host is complete.
TEST_F(MixedDevices, AMessageToTheCpuIsThere) {
  run([](World& world) {
    for (int i = 1; i <= 5; ++i) {
      const Tag tag{MessageKind::kForward, StageId(0), StageId(1), MicrobatchId(i)};
      if (world.rank().value == 0) {
        world.transport().send(RankId(1), tag, {{late(i)}, {}, {}});
      } else {
        const Message got = world.transport().receive(RankId(0), tag, std::chrono::seconds(20));
        EXPECT_TRUE(got.tensors[0].is_cpu());
        expect_all(got.tensors[0], i, "message");
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
      expect_all(tensor, 2 * i, "sum");
      at::Tensor copied = is_on_gpu ? late(i) : at::zeros({1 << 20});
      world.everyone().broadcast_into(copied, 0);
      if (is_on_gpu) {
        copied.fill_(-1);  // as soon as the call returns
      } else {
        expect_all(copied, i, "copy");
      }
    }
  });
}

}  // namespace
}  // namespace stagecraft::equivalence

#include "graph_random.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>

namespace stagecraft {

template <typename Number>
void upload(const std::vector<Number>& numbers, const at::Tensor& to) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  // LibTorch gives pinned memory away again only when the copy from it is done.
  const at::Tensor pinned = at::empty({count}, to.options().device(at::kCPU).pinned_memory(true));
  std::copy(numbers.begin(), numbers.end(), pinned.mutable_data_ptr<Number>());
  to.narrow(0, 0, count).copy_(pinned, /*non_blocking=*/true);
}
template void upload(const std::vector<std::int64_t>& numbers, const at::Tensor& to);
template void upload(const std::vector<double>& numbers, const at::Tensor& to);

StreamSeeds::StreamSeeds(GraphDevice& graphs, c10::Device device)
    : graphs_(graphs), zero_(at::zeros({1}, at::TensorOptions(at::kLong).device(device))) {}

at::Generator StreamSeeds::generator(const RandomStream& stream, std::uint64_t offset) {
  const at::RecordFunctionGuard unseen(/*is_enabled=*/false);  // by TensorWatch: blocks stay for as long as the graph
  const auto known = std::find(streams_.begin(), streams_.end(), stream);
  const auto number = static_cast<std::int64_t>(known - streams_.begin());
  if (known == streams_.end()) streams_.push_back(stream);
  if (number / kBlock == static_cast<std::int64_t>(blocks_.size())) {
    blocks_.push_back(at::empty({kBlock}, zero_.options()));
  }
  const at::Tensor seed = blocks_[static_cast<std::size_t>(number / kBlock)].narrow(0, number % kBlock, 1);
  return graphs_.generator(seed, zero_, offset);
}

void StreamSeeds::set_step(std::uint64_t seed, std::uint64_t step) {
  for (std::size_t block = 0; block < blocks_.size(); ++block) {
    const std::size_t begin = block * kBlock;
    const std::size_t end = std::min(streams_.size(), begin + kBlock);
    std::vector<std::int64_t> seeds;
    for (std::size_t i = begin; i < end; ++i) {
      seeds.push_back(static_cast<std::int64_t>(seed_of(streams_[i], seed, step)));
    }
    upload(seeds, blocks_[block]);
  }
}

}  // namespace stagecraft

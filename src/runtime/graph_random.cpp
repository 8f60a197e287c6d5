#include "graph_random.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "stagecraft/core/error.h"

namespace stagecraft {

template <typename Number>
void upload(const std::vector<Number>& numbers, const at::Tensor& to) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  // LibTorch gives pinned memory away again only when the copy from it is done.
  const at::Tensor pinned = at::empty({count}, to.options().device(at::kCPU).pinned_memory(!to.is_cpu()));
  std::copy(numbers.begin(), numbers.end(), pinned.mutable_data_ptr<Number>());
  to.narrow(0, 0, count).copy_(pinned, /*non_blocking=*/true);
}
template void upload(const std::vector<std::int64_t>& numbers, const at::Tensor& to);
template void upload(const std::vector<double>& numbers, const at::Tensor& to);

StreamSeeds::StreamSeeds(GraphDevice& graphs, c10::Device device)
    : graphs_(graphs),
      seeds_(at::empty({kMost}, at::TensorOptions(at::kLong).device(device))),
      zero_(at::zeros({1}, seeds_.options())) {}

at::Generator StreamSeeds::generator(const RandomStream& stream, std::uint64_t offset) {
  const auto known = std::find(streams_.begin(), streams_.end(), stream);
  const auto number = static_cast<std::int64_t>(known - streams_.begin());
  if (number == kMost) {
    throw InvalidArgument("its layers and microbatches draw from more than " + std::to_string(kMost) +
                          " streams of random numbers");
  }
  if (known == streams_.end()) streams_.push_back(stream);
  const at::RecordFunctionGuard unseen(/*is_enabled=*/false);  // by TensorWatch: all lanes read the seeds
  return graphs_.generator(seeds_.narrow(0, number, 1), zero_, offset);
}

void StreamSeeds::set_step(std::uint64_t seed, std::uint64_t step) {
  if (streams_.empty()) return;
  std::vector<std::int64_t> seeds;
  for (const RandomStream& stream : streams_) {
    seeds.push_back(static_cast<std::int64_t>(seed_of(stream, seed, step)));
  }
  upload(seeds, seeds_);
}

}  // namespace stagecraft

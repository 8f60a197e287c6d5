#pragma once

#include <vector>

#include "graph_device.h"
#include "stagecraft/stage/random.h"

namespace stagecraft {

/// The random streams of one graph. Their seeds lie on the device, and are set before every replay.
class StreamSeeds : public GraphRandom {
 public:
  /// Made before the capture. `graphs` outlives it.
  StreamSeeds(GraphDevice& graphs, c10::Device device);

  [[nodiscard]] c10::Device device() const override { return seeds_.device(); }
  at::Generator generator(const RandomStream& stream, std::uint64_t offset) override;
  [[nodiscard]] std::uint64_t offset_of(const at::Generator& generator) const override {
    return graphs_.offset_of(generator);
  }

  /// Makes the next replay draw the numbers of this step.
  void set_step(std::uint64_t seed, std::uint64_t step);

 private:
  static constexpr std::int64_t kMost = 1 << 16;

  GraphDevice& graphs_;
  std::vector<RandomStream> streams_;
  // Not memory of a capture: what a graph has used and freed before it draws, it uses again in every replay.
  at::Tensor seeds_;  // by stream
  at::Tensor zero_;   // where every stream begins
};

/// Copies numbers to a tensor on a device, without waiting for it.
template <typename Number>
void upload(const std::vector<Number>& numbers, const at::Tensor& to);

}  // namespace stagecraft

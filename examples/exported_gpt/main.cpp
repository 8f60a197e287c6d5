// A model from Python, trained without Python.
//
//   export.py ──▶ gpt.pt2 ──▶ Pipe: 4 stages ──▶ 2 ranks, zero bubble ──▶ gpt.safetensors ──▶ load_state_dict in Python
//
//   python examples/exported_gpt/export.py gpt.pt2
//   example_exported_gpt gpt.pt2 README.md gpt.safetensors        (threads; or under mpirun -n 2)

#include <torch/torch.h>

#include <fstream>
#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr std::int64_t kRows = 16;
constexpr std::int64_t kLength = 64;

at::Tensor read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.size() < 2 * kLength) throw sc::InvalidArgument(path + ": give a text of at least 128 bytes");
  return torch::from_blob(const_cast<char*>(text.data()), {static_cast<std::int64_t>(text.size())}, at::kByte)
      .to(at::kLong);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: example_exported_gpt MODEL.pt2 TEXT WEIGHTS.safetensors\n";
    return 2;
  }
  return sc::launch(argc, argv, {.ranks = 2}, [&](sc::World& world) {
    const sc::Pipe pipe(argv[1], {.stages = 2 * world.size()});
    if (world.is_first()) std::cout << pipe.summary();

    const auto loss = [](const at::Tensor& scores, const at::Tensor& target) {
      return torch::nn::functional::cross_entropy(scores.flatten(0, 1), target.flatten());
    };
    sc::Pipeline pipeline(world, pipe, {.schedule = "InterleavedZeroBubble", .microbatches = 4, .loss = loss});
    torch::optim::AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(3e-3));

    const at::Tensor text = read_bytes(argv[2]);
    for (int step = 0; step < 20; ++step) {
      const at::Tensor starts = at::arange(kRows) * 997 + step * 131;
      const at::Tensor places = (starts.unsqueeze(1) + at::arange(kLength)) % (text.size(0) - 1);
      const sc::StepResult result = pipeline.step({text.index({places})}, {.target = text.index({places + 1})});
      optimizer.step();
      optimizer.zero_grad();
      if (pipeline.has_last_stage() && (step == 0 || step == 19)) {
        std::cout << "step " << step + 1 << ": loss " << result.loss() << std::endl;
      }
    }
    sc::save_checkpoint(world, pipeline, argv[3]);
  });
}

// One training step of an MLP whose weights and data are given, for test_gradients.py:
//
//   parity_gradients FOLDER SCHEDULE RANKS STAGES_PER_RANK MICROBATCHES WIDTH ROWS
//
// Reads FOLDER/{x,y,w<stage>,b<stage>} (raw doubles), writes FOLDER/{gw<stage>,gb<stage>,losses,output}.

#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

torch::Tensor read(const std::string& path, at::IntArrayRef sizes) {
  torch::Tensor tensor = torch::empty(sizes, torch::kDouble);
  std::ifstream file(path, std::ios::binary);
  file.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  if (!file) throw sc::InvalidArgument("'" + path + "' is too short or cannot be read");
  return tensor;
}

void write(const std::string& path, const torch::Tensor& tensor) {
  const torch::Tensor whole = tensor.contiguous();
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(whole.data_ptr()), static_cast<std::streamsize>(whole.nbytes()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    std::cerr << "usage: parity_gradients FOLDER SCHEDULE RANKS STAGES_PER_RANK MICROBATCHES WIDTH ROWS\n";
    return 2;
  }
  const std::string folder = std::string(argv[1]) + "/", schedule = argv[2];
  const int ranks = std::atoi(argv[3]), per_rank = std::atoi(argv[4]), microbatches = std::atoi(argv[5]);
  const std::int64_t width = std::atoll(argv[6]), rows = std::atoll(argv[7]);
  return sc::launch(argc, argv, {.ranks = ranks, .threads_per_rank = 1}, [&](sc::World& world) {
    std::vector<sc::Stage> stages;
    for (const sc::StageId stage : sc::stages_here(world, schedule, per_rank)) {
      const std::string number = std::to_string(stage.value);
      const auto weight = read(folder + "w" + number, {width, width}).requires_grad_(true);
      const auto bias = read(folder + "b" + number, {width}).requires_grad_(true);
      stages.emplace_back(
          stage.value,
          [=](const sc::StageCall& call) -> sc::Value {
            return torch::tanh(torch::linear(call.tensor(0), weight, bias));
          },
          sc::NamedTensors{{"gw" + number, weight}, {"gb" + number, bias}});
    }
    sc::Pipeline pipeline(world, std::move(stages),
                          {.schedule = schedule,
                           .microbatches = microbatches,
                           .loss = [](const sc::Value& output, const sc::Value& target, const sc::ValueDict&) {
                             return torch::mse_loss(output.tensor(), target.tensor());
                           }});
    const auto x = read(folder + "x", {rows, width}), y = read(folder + "y", {rows, width});
    const sc::StepResult result = pipeline.step({x}, {.target = y, .return_outputs = true});
    for (const auto& [name, parameter] : pipeline.named_parameters()) write(folder + name, parameter.grad());
    if (!result.has_loss()) return;
    write(folder + "losses", torch::stack(result.losses));
    write(folder + "output", result.output.tensor());
  });
}

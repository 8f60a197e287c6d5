// A training step of a GPT, four stages on one rank of a GPU: eager, replayed as a graph, and a bare loop over the same
// modules, microbatch by microbatch, captured by hand. Called by gpu_step_bench.py. All run in one process, in turns;
// the best turn counts. Prints one line of JSON.
//
// With several ranks, as threads on one GPU, there is no bare loop.
//
//   gpu_step_bench LAYERS WIDTH MICROBATCHES ROWS LENGTH float|bfloat16 [RANKS]

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

#include "graph_device.h"
#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr int kStages = 4;
constexpr std::int64_t kVocabulary = 8192;

struct Setting {
  std::int64_t layers, width;
  int microbatches;
  std::int64_t rows, length;
  at::ScalarType type;
  int ranks;
};

// torch::nn::Linear adds the bias of a 3-d input in a kernel of its own: at::linear does not.
struct Dense : torch::nn::Module {
  Dense(std::int64_t in, std::int64_t out)
      : weight(register_parameter("weight", at::randn({out, in}) * 0.02)),
        bias(register_parameter("bias", at::zeros({out}))) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
  at::Tensor weight, bias;
};

struct Block : torch::nn::Module {
  explicit Block(std::int64_t width)
      : heads(width / 64),
        before(register_module("before", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        after(register_module("after", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        join(register_module("join", std::make_shared<Dense>(width, 3 * width))),
        leave(register_module("leave", std::make_shared<Dense>(width, width))),
        widen(register_module("widen", std::make_shared<Dense>(width, 4 * width))),
        narrow(register_module("narrow", std::make_shared<Dense>(4 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    std::vector<at::Tensor> parts = join->forward(before(x)).chunk(3, -1);
    for (at::Tensor& part : parts) part = part.unflatten(-1, {heads, -1}).transpose(1, 2);
    const at::Tensor seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    const at::Tensor y = x + leave->forward(seen.transpose(1, 2).flatten(2));
    return y + narrow->forward(at::gelu(widen->forward(after(y))));
  }
  std::int64_t heads;
  torch::nn::LayerNorm before, after;
  std::shared_ptr<Dense> join, leave, widen, narrow;
};

struct Part : torch::nn::Module {
  Part(const Setting& setting, int stage) {
    if (stage == 0) tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, setting.width));
    for (std::int64_t layer = 0; layer < setting.layers / kStages; ++layer) {
      blocks.push_back(register_module("block" + std::to_string(layer), std::make_shared<Block>(setting.width)));
    }
    if (stage + 1 == kStages) head = register_module("head", std::make_shared<Dense>(setting.width, kVocabulary));
  }
  at::Tensor forward(const at::Tensor& in) {
    at::Tensor x = tokens ? tokens->forward(in) : in;
    for (const auto& block : blocks) x = block->forward(x);
    return head ? head->forward(x) : x;
  }
  torch::nn::Embedding tokens{nullptr};
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<Dense> head;
};

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return at::cross_entropy_loss(output.flatten(0, 1).to(at::kFloat), target.flatten());
}

template <typename Step>
double milliseconds(int steps, const Step& step) {
  torch::cuda::synchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) step();
  torch::cuda::synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / steps;
}

void run(const Setting& setting, sc::World& world) {
  torch::manual_seed(1);
  const at::Device device = world.device();
  std::vector<std::shared_ptr<Part>> parts;
  std::vector<int> own;
  for (int s = 0; s < kStages; ++s) {
    parts.push_back(std::make_shared<Part>(setting, s));
    if (s % setting.ranks != world.rank().value) continue;  // as Interleaved1F1B and 1F1B lay them
    own.push_back(s);
    parts.back()->to(device, setting.type);
  }
  const auto options = torch::TensorOptions(at::kLong).device(device);
  const at::Tensor input = at::randint(kVocabulary, {setting.microbatches * setting.rows, setting.length}, options);
  const at::Tensor target = at::randint(kVocabulary, input.sizes(), options);
  auto* memory = at::getDeviceAllocator(at::kCUDA);
  const auto zero = [&] {
    for (const auto& part : parts) part->zero_grad();
  };

  // Takes turns of the steps of one subject; returns the best.
  const auto best_of = [&](const auto& step) {
    for (int i = 0; i < 3; ++i) step();
    const at::Tensor guess = at::scalar_tensor(milliseconds(1, step), at::kDouble);
    world.everyone().all_reduce(guess, sc::Reduction::kMax);  // all ranks run the same number of steps
    const int steps = std::clamp(static_cast<int>(300 / guess.item<double>()), 1, 10);
    double best = 1e9;
    for (int turn = 0; turn < (steps > 1 ? 5 : 3); ++turn) best = std::min(best, milliseconds(steps, step));
    return best;
  };
  std::ostringstream line;
  const bool is_interleaved = setting.ranks < kStages;
  for (const char* schedule :
       {is_interleaved ? "Interleaved1F1B" : "1F1B", is_interleaved ? "InterleavedZeroBubble" : "ZB-H1"}) {
    for (const bool graph : {false, true}) {
      zero();
      if (world.is_first()) {
        memory->emptyCache();
        memory->resetPeakStats(device.index());
      }
      std::vector<sc::Stage> stages;
      for (const int s : own) stages.push_back(sc::make_stage(s, parts[static_cast<std::size_t>(s)]));
      sc::Pipeline pipeline(world, std::move(stages),
                            {.schedule = schedule,
                             .stages_per_rank = kStages / setting.ranks,
                             .microbatches = setting.microbatches,
                             .loss = loss_of,
                             .graph = graph});
      const double best = best_of([&] {
        zero();
        pipeline.step({input}, {.target = target});
      });
      if (graph && !pipeline.captured().last_was_replayed) std::cerr << pipeline.captured().reason << "\n";
      const auto stats = memory->getDeviceStats(device.index());
      const std::string name = std::string(schedule) + (graph ? " graph" : " eager");
      line << "\"" << name << "\": " << best << ", \"" << name
           << " GB\": " << static_cast<double>(stats.reserved_bytes[0].peak) / 1e9 << ", ";
    }
  }
  if (setting.ranks > 1) {
    if (world.is_last()) std::cout << "{" << line.str() << "\"ranks\": " << setting.ranks << "}\n";
    return;
  }
  // The bare loop.
  const auto loop = [&] {
    const auto inputs = input.chunk(setting.microbatches);
    const auto targets = target.chunk(setting.microbatches);
    for (std::size_t m = 0; m < inputs.size(); ++m) {
      at::Tensor x = inputs[m];
      for (const auto& part : parts) x = part->forward(x);
      (loss_of(x, targets[m]) / setting.microbatches).backward();
    }
  };
  zero();
  memory->emptyCache();
  const double bare = best_of([&] {
    zero();
    loop();
  });
  zero();
  const auto graphs = sc::make_graph_device(device);
  const auto graph = graphs->capture(loop, /*makes_room=*/true);
  const double replayed = best_of([&] { graph->replay(); });
  std::cout << "{" << line.str() << "\"bare eager\": " << bare << ", \"bare graph\": " << replayed << "}\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) {
    std::cerr << "usage: gpu_step_bench LAYERS WIDTH MICROBATCHES ROWS LENGTH float|bfloat16\n";
    return 2;
  }
  const Setting setting{.layers = std::atoll(argv[1]),
                        .width = std::atoll(argv[2]),
                        .microbatches = std::atoi(argv[3]),
                        .rows = std::atoll(argv[4]),
                        .length = std::atoll(argv[5]),
                        .type = std::string(argv[6]) == "bfloat16" ? at::kBFloat16 : at::kFloat,
                        .ranks = argc > 7 ? std::atoi(argv[7]) : 1};
  return sc::launch(argc, argv, {.ranks = setting.ranks, .device_type = at::kCUDA},
                    [&](sc::World& world) { run(setting, world); });
}

// Trains a small pipeline for ever, with a fault on one rank at one action.
//
//   [mpirun -n N | start_processes.py -n N] fault_program FAULT RANK ACTION_NUMBER TIMEOUT_MS [THREADS [REPLICAS
//   [CHECKPOINT]]]
//
// FAULT: none, throw, throw_number, exit, kill, stop, hang, slow (it sleeps two timeouts), no_device (it throws before
// it has joined the others); ACTION_NUMBER counts this rank's actions from 0, over all steps. With CHECKPOINT, a path,
// it saves checkpoints for ever instead, the k-th with k in every weight, and the fault happens ACTION_NUMBER
// milliseconds after the first one. Ranks as threads print how they end, as processes do. They compute on
// STAGECRAFT_TEST_DEVICE, or on the CPU.

#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "stagecraft/stagecraft.h"
#include "stagecraft/transport/mpi.h"

namespace sc = stagecraft;

namespace {

void have_accident(const std::string& fault, sc::Timeout timeout) {
  if (fault == "throw") throw std::runtime_error("the accident that was asked for");
  if (fault == "throw_number") throw 42;
  if (fault == "slow") std::this_thread::sleep_for(2 * timeout);
  if (fault == "exit") std::exit(0);
  if (fault == "kill") raise(SIGKILL);
  if (fault == "stop") raise(SIGSTOP);
  if (fault == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
}

void save_for_ever(sc::World& world, sc::Pipeline& pipeline, const std::string& path,
                   const std::function<void()>& accident) {
  const torch::NoGradGuard no_grad;
  for (int k = 1; k < 1'000'000; ++k) {
    for (const at::Tensor& parameter : pipeline.parameters()) parameter.fill_(k);
    sc::save_checkpoint(world, pipeline, path, {.step = k});
    if (k == 1 && accident) std::thread(accident).detach();
  }
}

/// What a process says by itself.
void say_how_it_ends(sc::World& world, const std::function<void()>& program) {
  if (sc::is_started_by_mpi() || std::getenv("RANK") != nullptr) return program();
  try {
    program();
  } catch (const std::exception& error) {
    std::cerr << ("rank " + std::to_string(world.world_rank().value) + ": " + error.what() + "\n") << std::flush;
    throw;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: fault_program FAULT RANK ACTION_NUMBER TIMEOUT_MS [THREADS [REPLICAS]]\n";
    return 2;
  }
  const std::string fault = argv[1];
  const int rank = std::atoi(argv[2]);
  const int at = std::atoi(argv[3]);
  const sc::Timeout timeout(std::atoi(argv[4]));
  const char* device = std::getenv("STAGECRAFT_TEST_DEVICE");
  sc::LaunchOptions options{.threads_per_rank = 1,
                            .device_type = device != nullptr ? torch::Device(device).type() : torch::kCPU,
                            .timeout = timeout};
  if (fault == "no_device") {
    options.device = [rank](sc::RankId own) -> at::Device {
      if (own.value != rank) return at::kCPU;
      std::cerr << "accident at the choice of a device\n" << std::flush;
      throw std::runtime_error("the accident that was asked for");
    };
  }
  if (argc > 5) options.ranks = std::max(1, std::atoi(argv[5]));
  if (argc > 6) options.replicas = std::max(1, std::atoi(argv[6]));
  const auto train = [&](sc::World& world) {
    std::vector<sc::Stage> stages;
    const std::string schedule = "InterleavedZeroBubble";
    for (const sc::StageId stage : sc::stages_here(world, schedule, 2)) {
      torch::nn::Linear layer(64, 64);
      layer->to(world.device());
      stages.push_back(sc::make_stage(stage.value, layer, {}, std::to_string(stage.value)));
    }
    sc::Pipeline pipeline(world, std::move(stages),
                          {.schedule = schedule,
                           .microbatches = 4,
                           .loss = [](const sc::Value& output, const sc::Value& target, const sc::ValueDict&) {
                             return torch::mse_loss(output.tensor(), target.tensor());
                           }});
    if (argc > 7 && argv[7][0] != '-') {
      const auto accident = [fault, at, timeout] {
        std::this_thread::sleep_for(std::chrono::milliseconds(at));
        std::cerr << "accident at saving\n" << std::flush;
        have_accident(fault, timeout);
      };
      return save_for_ever(world, pipeline, argv[7],
                           world.world_rank().value == rank ? std::function<void()>(accident) : nullptr);
    }
    int actions = 0;
    for (const sc::ActionKind kind :
         {sc::ActionKind::kForward, sc::ActionKind::kBackwardInput, sc::ActionKind::kBackwardWeight,
          sc::ActionKind::kSendForward, sc::ActionKind::kRecvForward, sc::ActionKind::kSendBackward,
          sc::ActionKind::kRecvBackward, sc::ActionKind::kReduceGrad}) {
      pipeline.on(kind, [&](const sc::ActionContext& context) {
        if (world.world_rank().value == rank && actions++ == at) {
          std::cerr << ("accident at " + sc::to_text(context.action()) + "\n") << std::flush;
          have_accident(fault, timeout);
        }
        context.run();
      });
    }
    const auto x = torch::ones({8, 64}, world.device());
    for (int step = 0; step < 1'000'000; ++step) {
      pipeline.step({x}, {.target = x});
      if (step == 0 && world.world_rank().value == 0) std::cerr << "it trains\n" << std::flush;
    }
  };
  return sc::launch(argc, argv, options, [&](sc::World& world) { say_how_it_ends(world, [&] { train(world); }); });
}

#include <ATen/Context.h>

#include <iostream>

#include "options.h"
#include "stage_times.h"
#include "stagecraft/model/load_operators.h"
#include "stagecraft/runtime/launch.h"
#include "training.h"

int main(int argc, char** argv) {
  using namespace stagecraft;
  if (train::wants_stage_times(argc, argv)) return train::print_stage_times(argc, argv);
  train::Options options;
  int code = 0;
  if (!train::parse(argc, argv, options, code)) return code;
  try {
    for (const std::string& library : options.load) load_operators(library);
  } catch (const std::exception& error) {
    std::cerr << "stagecraft: train: " << error.what() << '\n';
    return 2;
  }
  const bool cuda = options.device == "cuda" || (options.device == "auto" && at::hasCUDA());
  const LaunchOptions where = {.ranks = options.ranks,
                               .replicas = options.replicas,
                               .threads_per_rank = options.threads,
                               .device_type = cuda ? at::kCUDA : at::kCPU,
                               .timeout = Timeout(static_cast<std::int64_t>(1000 * options.timeout)),
                               .name = "stagecraft: train"};
  return launch(argc, argv, where, [&](World& world) { train::train(world, options); });
}

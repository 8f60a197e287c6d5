#include <ATen/Context.h>

#include "options.h"
#include "stagecraft/runtime/launch.h"
#include "training.h"

int main(int argc, char** argv) {
  using namespace stagecraft;
  train::Options options;
  int code = 0;
  if (!train::parse(argc, argv, options, code)) return code;
  const bool cuda = options.device == "cuda" || (options.device == "auto" && at::hasCUDA());
  const LaunchOptions where = {.ranks = options.ranks,
                               .replicas = options.replicas,
                               .threads_per_rank = options.threads,
                               .device_type = cuda ? at::kCUDA : at::kCPU,
                               .timeout = Timeout(static_cast<std::int64_t>(1000 * options.timeout)),
                               .name = "stagecraft: train"};
  return launch(argc, argv, where, [&](World& world) { train::train(world, options); });
}

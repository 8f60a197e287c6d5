#include "options.h"
#include "stagecraft/runtime/launch.h"
#include "training.h"

int main(int argc, char** argv) {
  using namespace stagecraft;
  train::Options options;
  int code = 0;
  if (!train::parse(argc, argv, options, code)) return code;
  return launch(argc, argv, {.ranks = options.ranks, .replicas = options.replicas},
                [&](World& world) { train::train(world, options); });
}

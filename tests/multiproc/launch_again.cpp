// Launches one world after another, and says of how many ranks the last one is.
//
//   [start_processes.py -n N] launch_again LAUNCHES

#include <cstdlib>
#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

int main(int argc, char** argv) {
  const int launches = argc > 1 ? std::atoi(argv[1]) : 1;
  for (int i = 1; i <= launches; ++i) {
    const auto program = [&](sc::World& world) {
      const auto all = world.everyone().all_gather(std::to_string(world.world_rank().value));
      if (i == launches && world.world_rank().value == 0) std::cout << "a world of " << all.size() << " ranks\n";
    };
    const int code = sc::launch(argc, argv, {.ranks = 1, .threads_per_rank = 1}, program);
    if (code != 0) return code;
  }
  return 0;
}

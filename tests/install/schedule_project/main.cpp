// What a user writes after `cmake --install`: one include, one target.
#include <stagecraft/schedule.h>

#include <iostream>

int main() {
  namespace sc = stagecraft;
  sc::Schedule schedule = sc::make_schedule("ZBVZeroBubble", {.ranks = 4, .microbatches = 8});
  sc::run_passes(schedule, "send_recv,place_receives");
  sc::require_valid(schedule);
  std::cout << "stagecraft " << sc::version() << ": " << schedule.actions() << " actions, " << sc::count_steps(schedule)
            << " steps\n";
  sc::write_svg(std::cout, sc::as_drawn(schedule));
  return 0;
}

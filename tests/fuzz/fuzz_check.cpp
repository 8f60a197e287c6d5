// For any table, `check` accepts or refuses and never throws. An accepted schedule gives the right result in a symbolic
// execution, lowers, and can be simulated and drawn. Passes fail only with our own Error.
//
// Input: one byte that chooses the passes, then the table as CSV.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string_view>

#include "../property/mutation.h"
#include "../property/symbolic_execution.h"
#include "refusing.h"
#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/table.h"
#include "stagecraft/sim/simulator.h"
#include "stagecraft/sim/step_simulator.h"
#include "stagecraft/view/render.h"

namespace {

using namespace stagecraft;

constexpr std::array<std::string_view, 12> kPassLists = {kDefaultLowering,
                                                         "send_recv",
                                                         "merge_backward,unshard_reshard,reduce_grad,send_recv",
                                                         "unshard_reshard,reduce_grad,send_recv,place_receives",
                                                         "unshard_reshard,reduce_grad,send_recv,defer_receives",
                                                         "send_recv,defer_receives,place_receives",
                                                         "merge_backward",
                                                         "unshard_reshard",
                                                         "reduce_grad",
                                                         "defer_receives",
                                                         "place_receives",
                                                         "send_recv,reduce_grad,merge_backward"};

Verdict verdict_of(const Schedule& schedule) noexcept {  // an exception from here ends the process
  Verdict verdict = verify(schedule);
  if (const Refusal* refusal = verdict.first_refusal()) require(!refusal->full_text().empty());
  return verdict;
}

void require_true(const Schedule& schedule, const Verdict& verdict) {
  for (const CommModel model : kCommModels) {
    if (!verdict.ok(model)) continue;
    require(property::computes_the_right_thing(property::execute(schedule, model), schedule));
  }
}

/// A compute-only schedule that can run can be lowered, safely for every transport.
void require_lowerable(const Schedule& compute) {
  Schedule plain = compute;
  run_passes(plain, "send_recv");
  require(verdict_of(plain).ok());
  Schedule deferred = plain;
  defer_receives(deferred);
  require(verdict_of(deferred).ok(CommModel::kTagged));
  place_receives(plain);
  require(verdict_of(plain).ok());
}

/// In the step simulator a RECV waits for its SEND. It runs every schedule that is safe under rendezvous to the end,
/// but may refuse one in which a RECV must be posted long before its SEND.
void simulate_and_draw(const Schedule& schedule, const Verdict& verdict) {
  const bool counted = accepts([&] { count_steps(schedule); });
  require(counted || !verdict.ok(CommModel::kRendezvous));
  require(peak_live_activations(schedule).size() == schedule.rows.size());
  accepts([&] {
    std::ostringstream out;
    write_table(out, as_drawn(schedule).rows, {.width = 80});
  });
}

std::optional<Schedule> schedule_in(const std::uint8_t* data, std::size_t size) {
  std::optional<Schedule> schedule;
  if (size == 0) return schedule;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  accepts([&] { schedule = Schedule::from_rows(parse_csv(text)); });
  return schedule;
}

void check(const Schedule& schedule, std::string_view passes) {
  const Verdict verdict = verdict_of(schedule);
  require_true(schedule, verdict);
  simulate_and_draw(schedule, verdict);
  if (verdict.ok() && !verdict.lowered) require_lowerable(schedule);
  Schedule passed = schedule;
  if (!accepts([&] { run_passes(passed, passes); })) return;
  require_true(passed, verdict_of(passed));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (const auto schedule = schedule_in(data, size)) check(*schedule, kPassLists[data[0] % kPassLists.size()]);
  return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

/// Changed bytes rarely form a table. So if the input is a table, half of the time its actions are changed instead.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  property::Dice dice(seed);
  auto schedule = schedule_in(data, size);
  if (!schedule || dice.chance(50)) return LLVMFuzzerMutate(data, size, most);
  do {
    property::Mutation(*schedule, dice).apply();
  } while (schedule->actions() > 0 && dice.chance(30));
  const std::string text = to_csv(*schedule);
  if (text.size() + 1 > most) return LLVMFuzzerMutate(data, size, most);
  std::copy(text.begin(), text.end(), data + 1);
  return text.size() + 1;
}

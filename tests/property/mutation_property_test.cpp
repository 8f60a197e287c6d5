// A random mistake in a lowered schedule is either refused or harmless: a schedule that the verifier accepts computes
// what one device computes, and one that it refuses does not.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>

#include "generated_schedule.h"
#include "mutation.h"
#include "random_schedule.h"
#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/csv.h"
#include "symbolic_execution.h"

namespace stagecraft::property {
namespace {

constexpr int kMutationsPerSchedule = 150;

std::string described(const Schedule& schedule, const std::string& mutation, CommModel model, const Outcome& outcome) {
  const Verdict verdict = verify(schedule);
  const Refusal* refusal = verdict.refusal(model);
  return mutation + "\nmodel " + std::string(model_name(model)) +
         "\nverifier: " + (refusal == nullptr ? "safe" : refusal->full_text()) + "\nexecution: " +
         (outcome.ending == Ending::kFinished ? "finished"
          : outcome.ending == Ending::kStuck  ? "stuck "
                                              : "broke rule ") +
         outcome.why + "\n" + to_csv(schedule);
}

void expect_verdict_to_be_true(const Schedule& schedule, const std::string& mutation) {
  const Verdict verdict = verify(schedule);
  for (const CommModel model : kCommModels) {
    const Outcome outcome = execute(schedule, model);
    const Refusal* refusal = verdict.refusal(model);
    if (computes_the_right_thing(outcome, schedule) != (refusal == nullptr)) {
      RC_FAIL("verdict and execution disagree: " + described(schedule, mutation, model, outcome));
    }
    // Matched by order alone, a message that arrives early is taken for the expected one: wrong, but no deadlock.
    const bool by_tag = model != CommModel::kInOrder;
    if (refusal != nullptr && !refusal->cycle.empty() && by_tag && outcome.ending != Ending::kStuck) {
      RC_FAIL("a cycle is reported, but execution is not stuck: " + described(schedule, mutation, model, outcome));
    }
  }
  RC_ASSERT(!verdict.ok(CommModel::kRendezvous) || verdict.ok(CommModel::kInOrder));
  RC_ASSERT(!verdict.ok(CommModel::kInOrder) || verdict.ok(CommModel::kTagged));
}

/// The passes that move receives accept any order that can run at all, not just the one send_recv writes.
void expect_receives_to_be_movable(const Schedule& schedule, const std::string& mutation) {
  const bool communicates = any_part(schedule, [](const Action& a) { return is_communication(a.kind()); });
  if (!communicates || !verify(schedule).ok(CommModel::kTagged)) return;
  Schedule placed = schedule;
  place_receives(placed);
  expect_verdict_to_be_true(placed, mutation + ", then place_receives");
  Schedule deferred = schedule;
  defer_receives(deferred);
  expect_verdict_to_be_true(deferred, mutation + ", then defer_receives");
  if (!verify(placed).ok()) RC_FAIL("place_receives made it unsafe: " + mutation + "\n" + to_csv(placed));
  if (!verify(deferred).ok(CommModel::kTagged))
    RC_FAIL("defer_receives made it unsafe: " + mutation + "\n" + to_csv(deferred));
}

/// With the placement as it was, and with the one that a reader of the file would infer.
void check_mutation(const Schedule& original, Dice& dice) {
  Schedule mutated = original;
  const std::string what = Mutation(mutated, dice).apply();
  expect_verdict_to_be_true(mutated, what);
  expect_receives_to_be_movable(mutated, what);
  Schedule inferred;
  try {
    inferred = Schedule::from_rows(mutated.rows);
  } catch (const ScheduleError&) {
    return;  // refused even earlier
  }
  expect_verdict_to_be_true(inferred, what + " (placement inferred)");
}

constexpr std::array<std::string_view, 7> kMutatedLowerings = {"unshard_reshard,reduce_grad,send_recv",
                                                               "send_recv",
                                                               "merge_backward,unshard_reshard,reduce_grad,send_recv",
                                                               "unshard_reshard,reduce_grad,send_recv,place_receives",
                                                               "unshard_reshard,reduce_grad,send_recv,defer_receives",
                                                               "send_recv,defer_receives",
                                                               "unshard_reshard,reduce_grad"};

void check_mutations(const Schedule& compute, std::uint64_t seed) {
  Dice dice(seed);
  Schedule lowered = compute;
  run_passes(lowered, kMutatedLowerings[dice.below(kMutatedLowerings.size())]);
  expect_verdict_to_be_true(lowered, "not mutated");
  for (int i = 0; i < kMutationsPerSchedule; ++i) check_mutation(lowered, dice);
}

RC_GTEST_PROP(MutationProperty, OfRandomScheduleIsRefusedOrHarmless, (std::uint64_t seed)) {
  check_mutations(random_schedule(*random_shapes(4, 4, 4)), seed);
}

// Small tables are where a mistake is most often harmless.
RC_GTEST_PROP(MutationProperty, OfTinyScheduleIsRefusedOrHarmless, (std::uint64_t seed)) {
  check_mutations(random_schedule(*random_shapes(2, 1, 2)), seed);
}

RC_GTEST_PROP(MutationProperty, OfGeneratedScheduleIsRefusedOrHarmless, (std::uint64_t seed)) {
  check_mutations(generated(*generator_calls(4, 6)), seed);
}

RC_GTEST_PROP(MutationProperty, OfComputeOnlyScheduleIsRefusedOrHarmless, (std::uint64_t seed)) {
  const Schedule schedule = random_schedule(*random_shapes(4, 4, 4));
  Dice dice(seed);
  for (int i = 0; i < kMutationsPerSchedule; ++i) check_mutation(schedule, dice);
}

}  // namespace
}  // namespace stagecraft::property

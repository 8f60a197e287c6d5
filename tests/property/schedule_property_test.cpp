// What holds for every schedule, generated or random: it lowers, verifies, computes the right result in every model it
// is said to be safe in, can be simulated, keeps its memory formula, and stays the same when it is written and read.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>

#include "generated_schedule.h"
#include "independent_counts.h"
#include "random_schedule.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/sim/simulator.h"
#include "stagecraft/sim/step_simulator.h"
#include "symbolic_execution.h"
#include "written_schedule.h"

namespace stagecraft::property {
namespace {

constexpr std::array<std::string_view, 3> kLowerings = {kDefaultLowering, "send_recv",
                                                        "merge_backward,unshard_reshard,reduce_grad,send_recv"};

Schedule lowered(Schedule schedule, std::string_view passes) {
  run_passes(schedule, passes);
  return schedule;
}

void expect_safe(const Schedule& schedule, CommModel model) {
  const Verdict verdict = verify(schedule);
  if (const Refusal* refusal = verdict.refusal(model)) RC_FAIL(refusal->full_text());
  RC_ASSERT(computes_the_right_thing(execute(schedule, model), schedule));
}

void expect_safe_everywhere(const Schedule& schedule) {
  for (const CommModel model : kCommModels) expect_safe(schedule, model);
}

/// `defer_receives` considers each rank's order alone, so in general the result is safe only with tags. It is safe in
/// order exactly if both ends have the same order.
void expect_deferred_form_to_be_judged_rightly(const Schedule& deferred) {
  expect_safe(deferred, CommModel::kTagged);
  RC_ASSERT(verify(deferred).ok(CommModel::kInOrder) == pairs_agree_on_order(deferred));
}

void expect_receives_to_be_placed_well(const Schedule& lowered_form, const Schedule& deferred, const Schedule& placed) {
  RC_ASSERT(receives_stand_before_use(placed));
  RC_ASSERT(pairs_agree_on_order(placed));
  RC_ASSERT(lowered(placed, "place_receives") == placed);
  RC_ASSERT(lowered(deferred, "place_receives") == placed);
  RC_ASSERT(placed.actions() == lowered_form.actions());
}

void expect_to_lower(const Schedule& compute) {
  expect_safe_everywhere(compute);
  for (const std::string_view passes : kLowerings) {
    const Schedule plain = lowered(compute, passes);
    const Schedule deferred = lowered(plain, "defer_receives");
    const Schedule placed = lowered(plain, "place_receives");
    expect_safe_everywhere(plain);
    expect_safe_everywhere(placed);
    expect_deferred_form_to_be_judged_rightly(deferred);
    expect_receives_to_be_placed_well(plain, deferred, placed);
  }
}

// Several calls a run: there are 14 generators to go through.
RC_GTEST_PROP(ScheduleProperty, GeneratedLowersAndVerifies, ()) {
  for (int i = 0; i < 4; ++i) expect_to_lower(generated(*generator_calls(9, 24)));
}

RC_GTEST_PROP(ScheduleProperty, RandomLowersAndVerifies, ()) {
  expect_to_lower(random_schedule(*random_shapes(6, 6, 6)));
}

// --- steps ---

/// The step of every SEND, and whether every RECV comes at that step or later.
bool receives_follow_sends(const Schedule& schedule, const StepTimes& times) {
  std::map<std::tuple<ActionKind, StageId, MicrobatchId>, int> sent;
  const auto each = [&](auto visit) {
    for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
      for (std::size_t i = 0; i < schedule.rows[r].size(); ++i) visit(schedule.rows[r][i], times.step_of[r][i]);
    }
  };
  each([&](const Action& a, int step) {
    if (is_send(a.kind())) sent[{a.kind(), a.stage(), a.microbatch()}] = step;
  });
  bool follow = true;
  each([&](const Action& a, int step) {
    const Action send = counterpart(a);
    if (is_receive(a.kind())) follow &= sent.at({send.kind(), send.stage(), send.microbatch()}) <= step;
  });
  return follow;
}

void expect_steps_to_make_sense(const Schedule& schedule) {
  const StepTimes times = simulate_steps(schedule);
  int last = -1;
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    int before = -1;
    int actions = 0;
    for (std::size_t i = 0; i < schedule.rows[r].size(); ++i) {
      const int step = times.step_of[r][i];
      RC_ASSERT((step < 0) == schedule.rows[r][i].is_idle());
      if (step < 0) continue;
      RC_ASSERT(step > before);
      before = step;
      ++actions;
    }
    RC_ASSERT(times.steps >= actions);
    last = std::max(last, before);
  }
  RC_ASSERT(times.steps == last + 1);
  RC_ASSERT(times.steps == count_steps(schedule));
  RC_ASSERT(receives_follow_sends(schedule, times));
}

void expect_steps_of_every_form(const Schedule& compute) {
  expect_steps_to_make_sense(compute);
  const StepTimes times = simulate_steps(compute);
  RC_ASSERT(is_timetable(spread_over_steps(compute, times)));
  for (const std::string_view passes : kLowerings) {
    const Schedule plain = lowered(compute, passes);
    expect_steps_to_make_sense(plain);
    expect_steps_to_make_sense(lowered(plain, "place_receives"));
    expect_steps_to_make_sense(lowered(plain, "defer_receives"));
  }
}

RC_GTEST_PROP(ScheduleProperty, StepsOfGeneratedMakeSense, ()) {
  expect_steps_of_every_form(generated(*generator_calls(9, 24)));
}

RC_GTEST_PROP(ScheduleProperty, StepsOfRandomMakeSense, ()) {
  expect_steps_of_every_form(random_schedule(*random_shapes(6, 6, 6)));
}

// --- memory ---

void expect_peaks_to_be_counted_rightly(const Schedule& schedule) {
  const std::vector<int> peaks = peak_live_activations(schedule);
  RC_ASSERT(peaks.size() == schedule.rows.size());
  for (std::size_t r = 0; r < peaks.size(); ++r) RC_ASSERT(peaks[r] == peak_of_row(schedule.rows[r]));
}

RC_GTEST_PROP(ScheduleProperty, PeakOfLiveActivationsIsCountedRightly, ()) {
  const Schedule schedule = random_schedule(*random_shapes(6, 6, 6));
  expect_peaks_to_be_counted_rightly(schedule);
  expect_peaks_to_be_counted_rightly(lowered(schedule, kDefaultLowering));
}

/// What the memory formulas of `stagecraft list` depend on: ranks, stages per rank, microbatches, memory limit, rank.
struct MemoryCase {
  int p, v, m, limit, r;

  /// Microbatches in the first round of an interleaved schedule.
  [[nodiscard]] int q() const {
    const int rounds = std::max(1, m / p);
    return (m + rounds - 1) / rounds;
  }
};

struct MemoryFormula {
  std::string_view name;
  int (*most)(const MemoryCase&);
  bool exact;  // else an upper bound
};

constexpr std::array kMemoryFormulas = {
    MemoryFormula{"ForwardOnly", [](const MemoryCase&) { return 1; }, true},
    MemoryFormula{"GPipe", [](const MemoryCase& c) { return c.m; }, true},
    MemoryFormula{"1F1B", [](const MemoryCase& c) { return std::min(c.m, c.p - c.r); }, true},
    MemoryFormula{"Eager1F1B",
                  [](const MemoryCase& c) {
                    return std::min({c.m, c.limit == 0 ? c.m : c.limit, 2 * (c.p - c.r) - 1});
                  },
                  true},
    MemoryFormula{"ZB-H1", [](const MemoryCase& c) { return std::min(c.m, c.p); }, false},
    MemoryFormula{"ZB-H2", [](const MemoryCase& c) { return std::min(c.m, 2 * c.p - 1); }, false},
    MemoryFormula{"LoopedBFS", [](const MemoryCase& c) { return c.v * c.m; }, true},
    MemoryFormula{"Interleaved1F1B",
                  [](const MemoryCase& c) { return std::min(c.v * c.m, (c.v - 1) * c.q() + 2 * (c.p - 1 - c.r) + 1); },
                  true},
    MemoryFormula{"InterleavedZeroBubble",
                  [](const MemoryCase& c) { return std::min(c.v * c.m, (c.v - 1) * c.q() + c.p); }, false},
    MemoryFormula{"ZBVZeroBubble", [](const MemoryCase& c) { return std::min(2 * c.m, 2 * c.p); }, false},
    MemoryFormula{"V-Half", [](const MemoryCase& c) { return std::min(2 * c.m, 2 * (c.p / 2) + 2); }, false},
    MemoryFormula{"V-Min", [](const MemoryCase& c) { return std::min(2 * c.m, 2 * ((c.p + 4) / 3)); }, false},
    MemoryFormula{"1F1B-V", [](const MemoryCase& c) { return std::min(2 * c.m, 4 * c.p / 3 + 2); }, false},
    MemoryFormula{"DualPipeV", [](const MemoryCase& c) { return std::min(2 * c.m, 2 * c.p + 1); }, false},
};

void expect_memory_formula_to_hold(const MemoryFormula& formula, const Shape& shape) {
  const std::vector<int> peaks = peak_live_activations(make_schedule(formula.name, shape));
  for (int r = 0; r < shape.ranks; ++r) {
    const MemoryCase here{shape.ranks, shape.stages_per_rank, shape.microbatches, shape.memory_limit, r};
    SCOPED_TRACE(testing::Message() << formula.name << " p=" << here.p << " v=" << here.v << " m=" << here.m
                                    << " limit=" << here.limit << " r=" << r);
    const int peak = peaks[static_cast<std::size_t>(r)];
    EXPECT_LE(peak, formula.most(here));
    if (formula.exact) {
      EXPECT_EQ(peak, formula.most(here));
    }
  }
}

// Not random: the formulas depend on remainders of p and m, and all small cases take only a second.
TEST(ScheduleProperty, MemoryFormulasHold) {
  EXPECT_EQ(kMemoryFormulas.size(), generators().size()) << "a schedule without a formula here";
  for (const MemoryFormula& formula : kMemoryFormulas) {
    const Generator& generator = find_generator(formula.name);
    for (int p = 1; p <= 9; ++p) {
      for (int v = generator.min_stages_per_rank; v <= std::min(generator.max_stages_per_rank, 3); ++v) {
        for (int m = 1; m <= 24; ++m) {
          for (int limit = 0; limit <= (generator.takes_memory_limit ? m + 1 : 0); ++limit) {
            expect_memory_formula_to_hold(formula, {p, v, m, limit});
          }
        }
      }
    }
  }
}

// --- text ---

// Tables are small, so a run looks at many.
constexpr int kTablesPerRun = 30;

RC_GTEST_PROP(ScheduleProperty, ActionsSurviveBeingWritten, (std::uint64_t seed)) {
  Dice dice(seed);
  for (int i = 0; i < kTablesPerRun * kActionKinds; ++i) {
    const auto kind = static_cast<ActionKind>(i % kActionKinds);
    const Action action = random_action(kind, dice);
    RC_ASSERT((action.kind() == kind));
    RC_ASSERT((to_action(to_text(action)) == action));
  }
}

RC_GTEST_PROP(ScheduleProperty, TablesSurviveBeingWritten, (std::uint64_t seed)) {
  Dice dice(seed);
  for (int i = 0; i < kTablesPerRun; ++i) {
    Schedule schedule;
    schedule.rows = random_rows(dice);
    RC_ASSERT((parse_csv(to_csv(schedule)) == schedule.rows));
  }
}

RC_GTEST_PROP(ScheduleProperty, EveryDialectOfCsvIsReadWholeOrInPieces, (std::uint64_t seed)) {
  Dice dice(seed);
  for (int i = 0; i < kTablesPerRun; ++i) {
    const std::vector<Row> rows = random_rows(dice);
    const std::string text = in_some_dialect(rows, dice);
    RC_LOG() << text << std::endl;
    RC_ASSERT((parse_csv(text) == rows));
    CsvReader reader;
    for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
      length = dice.below(8);
      reader.feed(std::string_view(text).substr(at, length));
    }
    RC_ASSERT((reader.finish() == rows));
  }
}

}  // namespace
}  // namespace stagecraft::property

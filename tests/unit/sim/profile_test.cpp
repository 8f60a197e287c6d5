// Costs from timelines: simulates known costs, records the result like a run, and expects these costs back.

#include "stagecraft/sim/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/core/error.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/generator.h"
#include "stagecraft/sim/simulator.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

using testing::HasSubstr;

constexpr double kPause = 5;  // between two steps

/// The timelines that a run like this simulation would record.
StepTimelines timelines_of(const Schedule& schedule, const Simulation& simulation, const Costs& costs, double begin) {
  StepTimelines ranks;
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    Timeline& timeline = ranks.emplace_back();
    double reached = 0;
    for (std::size_t i = 0; i < schedule.rows[r].size(); ++i) {
      const Action& action = schedule.rows[r][i];
      const ActionTime time = simulation.times[r][i];
      const StageCosts& stage = costs.of(action.stage());
      Span& span = timeline.emplace_back();
      span.action = action;
      span.start = begin + reached;
      span.waited = time.start - reached;
      span.end = begin + time.end;
      if (action.kind() == ActionKind::kSendForward) span.bytes = static_cast<std::int64_t>(stage.forward_bytes);
      if (action.kind() == ActionKind::kSendBackward) span.bytes = static_cast<std::int64_t>(stage.backward_bytes);
      reached = time.end;
    }
  }
  return ranks;
}

/// The recording of a run with exactly these costs, over several steps.
Recording record(const std::string& name, const Shape& shape, const Costs& costs, int steps = 1) {
  Schedule schedule = make_schedule(name, shape);
  run_passes(schedule, "send_recv");
  const Simulation simulation = simulate(schedule, costs, {.keep_times = true});
  Recording recording{name, {}};
  for (int step = 0; step < steps; ++step) {
    recording.steps.push_back(timelines_of(schedule, simulation, costs, 100 + step * (simulation.makespan + kPause)));
  }
  return recording;
}

Profile profile_of(const Recording& recording, const ProfileOptions& options = {}) {
  return profile(std::span(&recording, 1), options);
}

/// Predictions for the first run's schedule: with the time between two steps, and without.
double simulated_period(const Profile& profile) { return predicted_period(profile, profile.runs.at(0).schedule); }
double simulated_makespan(Profile profile) {
  for (StageCosts& stage : profile.costs.stages) stage.optimizer = 0;
  return simulated_period(profile);
}

Costs uneven_costs(int stages) {
  Costs costs;
  costs.stages.clear();
  for (int s = 0; s < stages; ++s) {
    const double x = s;
    costs.stages.push_back({.forward = 3 + 0.5 * x,
                            .backward_input = 3.5 + 0.25 * x,
                            .backward_weight = 2 + 0.125 * x,
                            .backward = 5.25 + 0.375 * x});
  }
  costs.link.latency = 0.25;
  return costs;
}

void expect_same_times(const Costs& got, const Costs& expected, bool has_backward, bool has_parts) {
  ASSERT_EQ(got.stages.size(), expected.stages.size());
  for (std::size_t s = 0; s < got.stages.size(); ++s) {
    SCOPED_TRACE("stage " + std::to_string(s));
    EXPECT_NEAR(got.stages[s].forward, expected.stages[s].forward, 1e-9);
    if (has_parts) {
      EXPECT_NEAR(got.stages[s].backward_input, expected.stages[s].backward_input, 1e-9);
      EXPECT_NEAR(got.stages[s].backward_weight, expected.stages[s].backward_weight, 1e-9);
    }
    if (has_backward) {
      EXPECT_NEAR(got.stages[s].backward, expected.stages[s].backward, 1e-9);
    }
  }
}

TEST(Profile, GivesBackTheCostsOfARun) {
  for (const std::string name : {"GPipe", "1F1B", "Interleaved1F1B", "1F1B-V", "LoopedBFS"}) {
    SCOPED_TRACE(name);
    const Shape shape{.ranks = 3, .microbatches = 7};
    const Costs costs = uneven_costs(make_schedule(name, shape).stages());
    const Profile found = profile_of(record(name, shape, costs, 3));
    expect_same_times(found.costs, costs, true, false);
    ASSERT_EQ(found.runs.size(), 1U);
    EXPECT_EQ(found.runs[0].steps, 2) << "the first one does not count";
    EXPECT_NEAR(simulated_makespan(found), found.runs[0].measured_makespan, 1e-9);
    EXPECT_NEAR(simulated_period(found), found.runs[0].measured_period, 1e-9);
    EXPECT_NEAR(found.runs[0].measured_period, found.runs[0].measured_makespan + kPause, 1e-9);
  }
}

TEST(Profile, PredictsSchedulesItHasNotSeen) {
  const Shape shape{.ranks = 4, .microbatches = 9};
  const Costs costs = uneven_costs(4);
  const std::vector<Recording> runs = {record("1F1B", shape, costs), record("ZB-H1", shape, costs)};
  const Profile found = profile(runs);
  expect_same_times(found.costs, costs, true, true);
  EXPECT_TRUE(found.assumed_splits.empty());
  for (const std::string name : {"GPipe", "ZB-H2", "Eager1F1B"}) {
    const Schedule schedule = make_schedule(name, shape);
    EXPECT_NEAR(simulate(schedule, found.costs).makespan, simulate(schedule, costs).makespan, 1e-9) << name;
  }
}

TEST(Profile, LinksDifferAndLargeMessagesTellTheirBandwidth) {
  Costs costs = uneven_costs(3);
  costs.links = {{RankId(0), RankId(1), {.latency = 0.5, .bandwidth = 0}},
                 {RankId(2), RankId(1), {.latency = 1.5, .bandwidth = 0}}};
  const Shape shape{.ranks = 3, .microbatches = 5};
  const Costs found = profile_of(record("1F1B", shape, costs)).costs;
  EXPECT_NEAR(found.between(RankId(0), RankId(1)).latency, 0.5, 1e-9);
  EXPECT_NEAR(found.between(RankId(1), RankId(2)).latency, 0.25, 1e-9);
  EXPECT_NEAR(found.between(RankId(2), RankId(1)).latency, 1.5, 1e-9);

  Costs sized = uneven_costs(4);
  sized.link = {.latency = 0.5, .bandwidth = 1000};
  sized.stages[0].forward_bytes = 1000;  // both between ranks 0 and 1
  sized.stages[2].forward_bytes = 8000;
  sized.stages[1].forward_bytes = 1000;
  const Profile of_sizes =
      profile_of(record("Interleaved1F1B", {.ranks = 2, .stages_per_rank = 2, .microbatches = 2}, sized));
  EXPECT_NEAR(of_sizes.costs.between(RankId(0), RankId(1)).bandwidth, 1000, 1e-3);
  EXPECT_NEAR(of_sizes.costs.between(RankId(0), RankId(1)).latency, 0.5, 1e-6);
  EXPECT_EQ(of_sizes.costs.stages[2].forward_bytes, 8000);
}

TEST(Profile, ClocksOfDifferentMachinesAreSetByMessages) {
  const Shape shape{.ranks = 3, .microbatches = 4};
  const Costs costs = uneven_costs(3);
  Recording recording = record("1F1B", shape, costs, 3);
  for (StepTimelines& step : recording.steps) {
    for (Span& span : step[1]) span.start += 1000, span.end += 1000;
    for (Span& span : step[2]) span.start -= 0.1 * 3600, span.end -= 0.1 * 3600;
  }
  const Profile found = profile_of(recording);
  expect_same_times(found.costs, costs, true, false);
  EXPECT_NEAR(found.costs.between(RankId(0), RankId(1)).latency, 0.25, 1e-6);
  EXPECT_NEAR(simulated_makespan(found), found.runs[0].measured_makespan, 1e-6);
}

TEST(Profile, ClocksAreTrustedAsFarAsMessagesAllow) {
  // A device that tells its time a little too early: some messages seem to arrive before they are sent, while others
  // arrive long before anybody asks for them.
  constexpr double kEarly = 0.001;
  const Shape shape{.ranks = 4, .stages_per_rank = 2, .microbatches = 8};
  for (const std::string name : {"Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS"}) {
    Costs costs = uneven_costs(8);
    costs.link.latency = 0;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      SCOPED_TRACE(name + ", rank " + std::to_string(rank));
      Recording recording = record(name, shape, costs, 3);
      for (StepTimelines& step : recording.steps) {
        for (Span& span : step[rank]) span.start -= kEarly, span.end -= kEarly;
      }
      const Profile found = profile_of(recording);
      for (std::size_t s = 0; s < 8; ++s) {
        EXPECT_NEAR(found.costs.stages[s].forward, costs.stages[s].forward, 3 * kEarly) << "stage " << s;
      }
      for (const NamedLink& link : found.costs.links) EXPECT_LE(link.costs.latency, 3 * kEarly);
      EXPECT_NEAR(simulated_makespan(found), found.runs[0].measured_makespan, 0.1);
    }
  }
}

TEST(Profile, PostingMessagesIsPartOfTheirActions) {
  // RECV 1 s, F 2 s, SEND 3 s, and half a second between any two: all of it counts as time of the rank.
  const Action f = Action::forward(StageId(1), MicrobatchId(0));
  const Action b = Action::backward(StageId(1), MicrobatchId(0));
  Recording recording{"", {{{}, {}, {}}}};
  const auto add = [&](int rank, const Action& action, double start, double end, double waited = 0) {
    recording.steps[0][static_cast<std::size_t>(rank)].push_back({action, start, end, waited, 0, false});
  };
  const auto at = [](ActionKind kind, int stage) { return Action(kind, StageId(stage), MicrobatchId(0)); };
  add(0, at(ActionKind::kForward, 0), 0, 1);
  add(0, at(ActionKind::kSendForward, 0), 1, 1);
  add(1, at(ActionKind::kRecvForward, 1), 0, 1);
  add(1, f, 1.5, 3.5);
  add(1, at(ActionKind::kSendForward, 1), 4, 7);
  add(2, at(ActionKind::kForward, 2), 7, 8);
  add(2, at(ActionKind::kBackward, 2), 8, 9);
  add(2, at(ActionKind::kSendBackward, 2), 9, 9);
  add(1, b, 7, 13, 2);  // and 4 s of work
  add(1, at(ActionKind::kSendBackward, 1), 13, 14);
  add(0, at(ActionKind::kBackward, 0), 14, 15);
  const Costs costs = profile_of(recording).costs;
  EXPECT_NEAR(costs.stages[1].forward, 1 + 2.5 + 3.5, 1e-9);
  EXPECT_NEAR(costs.stages[1].backward, 4 + 1, 1e-9);
}

TEST(Profile, TakingAMessageThatHasArrivedCostsTime) {
  const auto at = [](ActionKind kind, int stage, int m) { return Action(kind, StageId(stage), MicrobatchId(m)); };
  Recording recording{"", {{{}, {}}}};
  auto& ranks = recording.steps[0];
  for (int m = 0; m < 3; ++m) {
    ranks[0].push_back({at(ActionKind::kForward, 0, m), 1.0 * m, m + 1.0, 0, 0, false});
    ranks[0].push_back({at(ActionKind::kSendForward, 0, m), m + 1.0, m + 1.0, 0, 0, false});
  }
  // The consumer waits for the first message (0.3 s after it was sent); the others have arrived and take 0.1 s.
  ranks[1].push_back({at(ActionKind::kForward, 1, 0), 0, 6.3, 1.3, 0, false});
  ranks[1].push_back({at(ActionKind::kForward, 1, 1), 6.3, 11.4, 0.1, 0, false});
  ranks[1].push_back({at(ActionKind::kForward, 1, 2), 11.4, 16.5, 0.1, 0, false});
  const Profile found = profile_of(recording);
  EXPECT_NEAR(found.costs.stages[1].forward, 5.1, 1e-9);
  EXPECT_NEAR(found.costs.between(RankId(0), RankId(1)).latency, 0.2, 1e-9);
  EXPECT_NEAR(simulated_makespan(found), 16.5, 1e-9);
}

TEST(Profile, BackwardsSeenInOneFormGiveTheOther) {
  const Shape shape{.ranks = 2, .microbatches = 4};
  Costs costs;
  costs.stages = {{.forward = 2, .backward_input = 1, .backward_weight = 1, .backward = 5},
                  {.forward = 4, .backward_input = 1.5, .backward_weight = 0.5, .backward = 4}};
  const Profile whole = profile_of(record("1F1B", shape, costs));
  EXPECT_EQ(whole.assumed_splits, (std::vector{StageId(0), StageId(1)}));
  EXPECT_NEAR(whole.costs.stages[0].backward_input, 2, 1e-9);  // as long as the F
  EXPECT_NEAR(whole.costs.stages[0].backward_weight, 3, 1e-9);
  EXPECT_NEAR(whole.costs.stages[1].backward_input, 3, 1e-9);  // three quarters of the B
  EXPECT_NEAR(whole.costs.stages[1].backward_weight, 1, 1e-9);
  const Profile parts = profile_of(record("ZB-H1", shape, costs));
  EXPECT_TRUE(parts.assumed_splits.empty());
  EXPECT_NEAR(parts.costs.stages[0].backward, 2, 1e-9);
  EXPECT_NEAR(parts.costs.stages[1].backward, 2, 1e-9);
}

TEST(Profile, WhatAveragingMadeARankWaitForIsReduceGrad) {
  const auto reduce = Action::of_stage(ActionKind::kReduceGrad, StageId(0));
  Recording recording{"",
                      {{{{Action::forward(StageId(0), MicrobatchId(0)), 0, 1, 0, 0, false},
                         {Action::backward(StageId(0), MicrobatchId(0)), 1, 3, 0, 0, false},
                         {reduce, 3, 3.5, 0, 0, false},
                         {reduce, 3.25, 6, 2.5, 100, true}}}}};
  EXPECT_NEAR(profile_of(recording).costs.stages[0].reduce_grad, 3, 1e-9);
  EXPECT_NEAR(simulated_makespan(profile_of(recording)), 6, 1e-9);
  EXPECT_NEAR(profile_of(recording).costs.stages[0].backward, 2, 1e-9);
}

TEST(Profile, AWaitForParametersIsNotAWaitForAMessage) {
  const auto forward = [](int stage, int microbatch) {
    return Action::forward(StageId(stage), MicrobatchId(microbatch));
  };
  const auto backward = [](int stage, int microbatch) {
    return Action::backward(StageId(stage), MicrobatchId(microbatch));
  };
  const auto send = [](ActionKind kind, int stage, int microbatch) {
    return Action(kind, StageId(stage), MicrobatchId(microbatch));
  };
  // Stage 1 has its parameters at 5, long after the first message; the second is sent at 8 and takes half a second.
  const Timeline first = {
      {forward(0, 0), 0, 1, 0, 0, false},   {send(ActionKind::kSendForward, 0, 0), 1, 1, 0, 8, false},
      {forward(0, 1), 1, 8, 0, 0, false},   {send(ActionKind::kSendForward, 0, 1), 8, 8, 0, 8, false},
      {backward(0, 0), 8, 17, 7, 0, false}, {backward(0, 1), 17, 19, 0, 0, false}};
  const Timeline second = {{forward(1, 0), 0, 7, 5, 0, false},
                           {forward(1, 1), 7, 10.5, 1.5, 0, false},
                           {backward(1, 0), 10.5, 14.5, 0, 0, false},
                           {send(ActionKind::kSendBackward, 1, 0), 14.5, 14.5, 0, 8, false},
                           {backward(1, 1), 14.5, 16.5, 0, 0, false},
                           {send(ActionKind::kSendBackward, 1, 1), 16.5, 16.5, 0, 8, false},
                           {Action::of_stage(ActionKind::kUnshard, StageId(1)), 0, 5, 5, 8, true}};
  const Costs costs = profile_of(Recording{"", {{first, second}}}).costs;
  EXPECT_NEAR(costs.stages[1].forward, 2, 1e-9);
  EXPECT_NEAR(costs.between(RankId(0), RankId(1)).latency, 0.5, 1e-9);
}

TEST(Profile, HalvesOfAnOverlapThatRanSideBySideTakeTheirTimeTogether) {
  Timeline timeline;
  const auto add = [&](const char* action, double start, double end) {
    timeline.push_back({to_action(action), start, end, 0, 0, false});
  };
  add("0F0", 0, 1);
  add("1F0", 1, 2);
  add("0F1", 2, 6);    // an overlap on a device with streams,
  add("1B0", 2.5, 4);  // whose second half is done first
  add("1F1", 6, 7);
  add("0B0", 7, 9);
  add("1B1", 9, 11);
  add("0B1", 11, 13);
  const Profile found = profile_of({"overlapping", {{timeline}}});
  EXPECT_NEAR(found.costs.stages[0].forward, 2.5, 1e-9);
  EXPECT_NEAR(found.costs.stages[1].forward, 1, 1e-9);
  EXPECT_NEAR(found.costs.stages[0].backward, 2, 1e-9);
  EXPECT_NEAR(found.costs.stages[1].backward, 1, 1e-9);
}

TEST(Profile, AWaitThatTheOtherHalfOfAnOverlapHidesIsNoneOfItsTime) {
  const Action send(ActionKind::kSendBackward, StageId(1), MicrobatchId(0));
  for (const bool backward_first : {false, true}) {
    const Span forward{to_action("0F1"), 10, 20};
    const Span backward{to_action("0B0"), backward_first ? 9.5 : 10.5, 24, backward_first ? 7.5 : 6.5};  // until 17
    Timeline first = {{to_action("0F0"), 0, 9.5}, forward, backward, {to_action("0B1"), 24, 28}};
    if (backward_first) std::swap(first[1], first[2]);
    const Timeline second = {{to_action("1F0"), 0, 12, 10},
                             {to_action("1B0"), 12, 16},
                             {send, 16, 16.5},
                             {to_action("1F1"), 16.5, 18.5},
                             {to_action("1B1"), 18.5, 22.5}};
    const Profile found = profile_of({"overlapping", {{first, second}}});
    EXPECT_NEAR(found.costs.stages[0].forward, (9.5 + 10 + (backward_first ? 0 : 0.5)) / 2, 1e-9);
    EXPECT_NEAR(found.costs.stages[0].backward, 4, 1e-9) << "the first one took the 4 seconds after the forward";
  }
}

TEST(Profile, AnOddStepDoesNotCount) {
  const Shape shape{.ranks = 2, .microbatches = 4};
  const Costs costs = uneven_costs(2);
  Recording recording = record("1F1B", shape, costs, 6);
  for (Timeline& timeline : recording.steps[3]) {
    const double begin = timeline.front().start;
    for (Span& span : timeline) {  // ten times as slow
      span.start = begin + 10 * (span.start - begin);
      span.end = begin + 10 * (span.end - begin);
      span.waited *= 10;
    }
  }
  expect_same_times(profile_of(recording).costs, costs, true, false);
}

TEST(Profile, ActionsThatVaryMakeAStepLonger) {
  const Shape shape{.ranks = 3, .microbatches = 8};
  Costs costs;
  Schedule schedule = make_schedule("1F1B", shape);
  run_passes(schedule, "send_recv");
  Recording recording{"1F1B", {}};
  std::vector<double> measured;
  for (std::uint64_t step = 0; step < 40; ++step) {
    const Simulation simulation =
        simulate(schedule, costs, {.keep_times = true, .jitter = 0.2, .seed = 100 + 7 * step});
    measured.push_back(simulation.makespan);
    recording.steps.push_back(timelines_of(schedule, simulation, costs, 0));
  }
  const Profile found = profile_of(recording);
  EXPECT_NEAR(found.jitter, 0.2, 0.03);
  EXPECT_NEAR(found.costs.stages[1].forward, 1, 0.05);
  Profile steps_alone = found;
  for (StageCosts& stage : steps_alone.costs.stages) stage.optimizer = 0;
  const double typical = median(measured);
  EXPECT_GT(typical, 1.03 * simulate(schedule, costs).makespan);
  EXPECT_NEAR(predicted_period(steps_alone, schedule) / typical, 1, 0.02);
}

TEST(Profile, AStepWaitsForTheRankThatIsSlowThisTime) {
  const Shape shape{.ranks = 3, .microbatches = 6};
  const Costs costs = uneven_costs(3);
  // Each rank has its normal speed in most steps, but in most steps one rank is slow.
  const auto in_step = [&](int step) {
    Costs own = costs;
    own.rank_slowdown = {step % 4 == 0 ? 1.5 : 1.0, step % 4 == 1 ? 1.4 : 1.0, step % 4 == 2 ? 1.3 : 1.0};
    return own;
  };
  constexpr int kSteps = 24;
  std::vector<Recording> runs;
  for (const std::string name : {"1F1B", "ZB-H1"}) {
    for (int step = 0; step < kSteps; ++step) runs.push_back(record(name, shape, in_step(step)));
  }
  const Profile found = profile(runs);
  expect_same_times(found.costs, costs, true, true);
  ASSERT_EQ(found.paces.size(), 2U * kSteps);
  EXPECT_NEAR(found.paces[4][0], 1.5, 1e-9);
  EXPECT_NEAR(found.paces[kSteps + 2][2], 1.3, 1e-9);
  EXPECT_NEAR(found.paces[3][1], 1, 1e-9);
  for (const std::string name : {"1F1B", "GPipe", "ZB-H2"}) {
    SCOPED_TRACE(name);
    const Schedule schedule = make_schedule(name, shape);
    std::vector<double> measured;
    for (int step = 0; step < kSteps; ++step) measured.push_back(simulate(schedule, in_step(step)).makespan);
    EXPECT_GT(median(measured), 1.05 * simulate(schedule, costs).makespan);
    EXPECT_NEAR(predicted_period(found, schedule), median(measured), 1e-6);
    Profile twice = found;
    twice.costs.rank_slowdown = {2};
    twice.costs.links.clear();
    twice.costs.link.latency *= 2;
    EXPECT_NEAR(predicted_period(twice, schedule), 2 * median(measured), 1e-6) << "what if";
  }
}

TEST(Profile, RunsInSlowTimesCostNoMore) {
  // The run with split backwards was recorded while everything was slower; the costs of its I and W are corrected for
  // that.
  const Shape shape{.ranks = 2, .microbatches = 6};
  const Costs costs = uneven_costs(2);
  Costs slower = costs;
  slower.rank_slowdown = {1.25};
  std::vector<Recording> runs;
  for (int i = 0; i < 5; ++i) runs.push_back(record("1F1B", shape, costs));
  for (int i = 0; i < 4; ++i) runs.push_back(record("ZB-H1", shape, slower));
  expect_same_times(profile(runs).costs, costs, true, true);
}

TEST(Profile, RefusesWhatItCannotUse) {
  const Shape shape{.ranks = 2, .microbatches = 2};
  const Costs costs = uneven_costs(2);
  EXPECT_THAT(message_of([] { (void)profile({}); }), HasSubstr("record at least one"));
  Recording recording = record("1F1B", shape, costs, 2);
  EXPECT_THAT(message_of([&] { (void)profile_of(recording, {.skip = 2}); }), HasSubstr("leave out fewer"));
  EXPECT_EQ(profile_of(recording, {.skip = 0}).runs[0].steps, 2);
  const std::vector<Recording> two = {recording, record("1F1B-V", shape, uneven_costs(4))};
  EXPECT_THAT(message_of([&] { (void)profile(two); }), HasSubstr("2 stages on 2 ranks, then 4 on 2"));
  recording.steps[0][1].push_back({Action(ActionKind::kSendForward, StageId(99), MicrobatchId(0)), 1, 2, 0, 0, false});
  EXPECT_THAT(message_of([&] { (void)profile_of(recording); }), HasSubstr("rank 1 has 99SEND_F0"));
  recording.steps[0][1].back().action =
      Action::overlap(Action::forward(StageId(1), MicrobatchId(0)), Action::backward(StageId(1), MicrobatchId(1)));
  EXPECT_THAT(message_of([&] { (void)profile_of(recording); }), HasSubstr("as its two halves"));
  recording.steps[0][1].pop_back();
  recording.steps[1][1].clear();
  EXPECT_THAT(message_of([&] { (void)profile_of(recording); }), HasSubstr("rank 1 has an empty timeline"));
}

}  // namespace
}  // namespace stagecraft

// Recorded timelines as a file, there and back.

#include "stagecraft/view/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "stagecraft/schedule/csv.h"
#include "stagecraft/view/render.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Recording two_steps() {
  const Action f = Action::forward(StageId(0), MicrobatchId(0));
  const Action send(ActionKind::kSendForward, StageId(0), MicrobatchId(0));
  const Action reduce = Action::of_stage(ActionKind::kReduceGrad, StageId(1));
  const Action g = Action::forward(StageId(1), MicrobatchId(0));
  Recording recording{"a \"name\"", {}};
  for (const double t : {5000.0, 5001.0}) {
    recording.steps.push_back({{{f, t, t + 0.25, 0, 0, false}, {send, t + 0.25, t + 0.250001, 0, 4096, false}},
                               {{g, t, t + 0.75, 0.251, 0, false, true}, {reduce, t + 0.5, t + 0.9, 0.125, 77, true}}});
  }
  return recording;
}

std::string written(const Recording& recording) {
  std::ostringstream out;
  write_timeline_trace(out, recording);
  return out.str();
}

TEST(TimelineTrace, IsReadBackAsItWas) {
  const Recording recording = two_steps();
  const Recording read = parse_timeline_trace(written(recording));
  EXPECT_EQ(read.name, recording.name);
  ASSERT_EQ(read.steps.size(), 2U);
  for (std::size_t s = 0; s < 2; ++s) {
    ASSERT_EQ(read.steps[s].size(), 2U);
    for (std::size_t r = 0; r < 2; ++r) {
      ASSERT_EQ(read.steps[s][r].size(), 2U);
      for (std::size_t i = 0; i < 2; ++i) {
        const Span& got = read.steps[s][r][i];
        const Span& expected = recording.steps[s][r][i];
        EXPECT_EQ(got.action, expected.action);
        EXPECT_NEAR(got.start, expected.start - 5000, 1e-9);
        EXPECT_NEAR(got.end, expected.end - 5000, 1e-9);
        EXPECT_NEAR(got.waited, expected.waited, 1e-9);
        EXPECT_EQ(got.bytes, expected.bytes);
        EXPECT_EQ(got.beside, expected.beside);
        EXPECT_EQ(got.replayed, expected.replayed);
      }
    }
  }
  EXPECT_EQ(written(read), written(parse_timeline_trace(written(read))));
}

TEST(TimelineTrace, WhatOthersHaveAddedIsLeftOut) {
  auto json = nlohmann::json::parse(written(two_steps()));
  json["traceEvents"].push_back({{"ph", "C"}, {"name", "memory"}});
  json["traceEvents"].push_back({{"ph", "X"}, {"name", "aten::mm"}, {"pid", 0}, {"args", nlohmann::json::object()}});
  EXPECT_EQ(parse_timeline_trace(json.dump()).steps[0][0].size(), 2U);
}

std::string message_for(const std::string& json) {
  return message_of([&] { (void)parse_timeline_trace(json); });
}

TEST(TimelineTrace, MistakesAreNamedByEventAndKey) {
  auto json = nlohmann::json::parse(written(two_steps()));
  auto& events = json["traceEvents"];
  events[2]["name"] = "0Q0";
  events[3]["args"]["step"] = -1;
  events[5]["dur"] = "long";
  events[5].erase("ts");
  EXPECT_THAT(message_for(json.dump()),
              AllOf(HasSubstr("traceEvents[2].name: got \"0Q0\""), HasSubstr("traceEvents[3].args.step: got -1"),
                    HasSubstr("traceEvents[5].dur: got \"long\", expected a number"),
                    HasSubstr("traceEvents[5].ts: is missing")));
  EXPECT_THAT(message_for("{\n\n"), HasSubstr("line 3: this is not JSON"));
  EXPECT_THAT(message_for("{}"), HasSubstr("traceEvents: is missing"));
  EXPECT_THAT(message_for(R"({"traceEvents": 3})"), HasSubstr("traceEvents: got 3"));
  EXPECT_THAT(message_for(R"({"traceEvents": []})"), HasSubstr("record_timeline"));
  std::ostringstream drawn;
  write_trace(drawn, Schedule::from_rows(parse_csv("0F0,0B0\n")));
  EXPECT_THAT(message_for(drawn.str()), HasSubstr("the picture of a schedule"));
}

TEST(TimelineTrace, WrongNumbersTakeNoMemory) {
  for (const char* key : {"step", "pid"}) {
    auto json = nlohmann::json::parse(written(two_steps()));
    auto& event = json["traceEvents"][2];
    (key == std::string("pid") ? event : event["args"])[key] = 900000;
    EXPECT_THAT(message_for(json.dump()), HasSubstr("more than the events before it")) << key;
  }
}

TEST(TimelineTrace, EveryRankHasEveryStep) {
  Recording recording = two_steps();
  recording.steps[1].pop_back();
  EXPECT_THAT(message_for(written(recording)), HasSubstr("rank 1 has no action in step 1"));
}

TEST(TimelineSummary, HalvesOfAnOverlapThatRanSideBySideCountOnce) {
  const Action f = Action::forward(StageId(0), MicrobatchId(1));
  const Action b = Action::backward(StageId(1), MicrobatchId(0));
  const Action send(ActionKind::kSendForward, StageId(0), MicrobatchId(1));
  const Action reduce = Action::of_stage(ActionKind::kReduceGrad, StageId(1));
  const TimelineSummary summary = summarize(
      {{{f, 0, 10}, {b, 0.5, 14, 7}, {send, 14, 15}, {reduce, 14, 20, 5, 8, true}}, {{f, 0, 10}, {b, 0.5, 9.5}}});
  EXPECT_NEAR(summary.seconds, 20, 1e-9);
  ASSERT_EQ(summary.busy.size(), 2U);
  EXPECT_NEAR(summary.busy[0], 14, 1e-9);
  EXPECT_NEAR(summary.busy[1], 10, 1e-9);
  EXPECT_NEAR(summary.idle(), 0.4, 1e-9);
}

}  // namespace
}  // namespace stagecraft

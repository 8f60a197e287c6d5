#include "stagecraft/view/render.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "stagecraft/schedule/csv.h"

namespace stagecraft {
namespace {

Schedule schedule(std::string_view csv) { return Schedule::from_rows(parse_csv(csv), "name"); }

TEST(AsDrawn, ATimetableStaysAsItIs) {
  const Schedule table = schedule("0F0,0F1,,,0B0,0B1\n,1F0,1F1,1B0,1B1,\n");
  EXPECT_EQ(as_drawn(table), table);
}

TEST(AsDrawn, BareOrdersAreSpreadOverSteps) {
  const Schedule drawn = as_drawn(schedule("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"));
  ASSERT_EQ(drawn.ranks(), 2);
  ASSERT_GE(drawn.rows[1].size(), 2U);
  EXPECT_TRUE(drawn.rows[1][0].is_idle());
  EXPECT_EQ(drawn.rows[1][1], Action::forward(StageId(1), MicrobatchId(0)));
  EXPECT_EQ(drawn.actions(), 8);
  EXPECT_EQ(drawn.name, "name");
}

TEST(AsDrawn, WhatCannotRunIsShownAsItStands) {
  const Schedule stuck = schedule("0B0,0F0\n1B0,1F0\n");
  EXPECT_EQ(as_drawn(stuck), stuck);
}

nlohmann::json parsed(const Schedule& schedule) {
  std::ostringstream out;
  write_json(out, schedule);
  return nlohmann::json::parse(out.str());
}

TEST(Json, HoldsTheWholeSchedule) {
  const auto json = parsed(Schedule::from_rows(parse_csv("0F0,,(0F1;3B0)OVERLAP_F_B,3F0\n1F0,2UNSHARD,2F0\n"), "V"));
  const auto expected = nlohmann::json::parse(R"({
    "name": "V", "ranks": 2, "stages": 4, "microbatches": 2, "placement": [0, 1, 1, 0],
    "rows": [["0F0", null, "(0F1;3B0)OVERLAP_F_B", "3F0"], ["1F0", "2UNSHARD", "2F0"]]})");
  EXPECT_EQ(json, expected);
}

TEST(Json, EmptySchedules) {
  EXPECT_EQ(parsed(Schedule{}).at("rows"), nlohmann::json::array());
  Schedule no_steps;
  no_steps.rows.resize(2);
  EXPECT_EQ(parsed(no_steps).at("rows"), nlohmann::json::parse("[[], []]"));
}

TEST(Json, AnyNameSurvives) {
  Schedule schedule;
  schedule.name = "a\"b\\c\n\x01/\xc3\xa9\xf0\x9f\x9a\x80";
  EXPECT_EQ(parsed(schedule).at("name"), schedule.name);
}

TEST(Json, BytesThatAreNotUtf8AreReplaced) {
  for (const char* bad : {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    Schedule schedule;
    schedule.name = std::string(bad) + "x";
    const std::string name = parsed(schedule).at("name");
    EXPECT_TRUE(name.starts_with("\xEF\xBF\xBD") && name.ends_with("x")) << name;
  }
}

}  // namespace
}  // namespace stagecraft

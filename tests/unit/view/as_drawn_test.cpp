#include <gtest/gtest.h>

#include "stagecraft/schedule/csv.h"
#include "stagecraft/view/render.h"

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

}  // namespace
}  // namespace stagecraft

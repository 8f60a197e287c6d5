#include "stagecraft/schedule/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/csv.h"

namespace stagecraft {
namespace {

std::string csv_of(const char* name, Shape shape) {
  std::string csv = to_csv(make_schedule(name, shape));
  std::erase(csv, '\r');
  return csv;
}

struct Table {
  const char* name;
  Shape shape;
  const char* csv;
};

class Generates : public testing::TestWithParam<Table> {};

TEST_P(Generates, ThisTable) { EXPECT_EQ(csv_of(GetParam().name, GetParam().shape), GetParam().csv); }

INSTANTIATE_TEST_SUITE_P(
    Generator, Generates,
    testing::Values(
        Table{"ForwardOnly",
              {.ranks = 2, .stages_per_rank = 2, .microbatches = 3},
              "0F0,0F1,2F0,2F1,0F2,,2F2\n"
              ",1F0,1F1,3F0,3F1,1F2,,3F2\n"},
        Table{"GPipe",
              {.ranks = 2, .microbatches = 2},
              "0F0,0F1,0B0,0B1\n"
              "1F0,1F1,1B0,1B1\n"},
        Table{"1F1B",
              {.ranks = 3, .microbatches = 4},
              "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
              "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
              "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n"},
        Table{"1F1B", {.ranks = 3, .microbatches = 1}, "0F0,0B0\n1F0,1B0\n2F0,2B0\n"},
        Table{"Eager1F1B",
              {.ranks = 3, .microbatches = 5},
              "0F0,0F1,0F2,0F3,0F4,0B0,,0B1,,0B2,,0B3,,0B4\n"
              ",1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,,1B3,,1B4\n"
              ",,2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3,2F4,2B4\n"},
        Table{"Eager1F1B",
              {.ranks = 3, .microbatches = 4, .memory_limit = 2},
              "0F0,0F1,,,,0B0,0F2,,,0B1,0F3,,,0B2,,0B3\n"
              ",1F0,1F1,,1B0,,,1F2,1B1,,,1F3,1B2,,1B3\n"
              ",,2F0,2B0,2F1,2B1,,,2F2,2B2,,,2F3,2B3\n"},
        Table{"ZB-H1",
              {.ranks = 3, .microbatches = 4},
              "0F0,0F1,0F2,,,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3\n"
              ",1F0,1F1,,1I0,1F2,1I1,1W0,1F3,1I2,1W1,1I3,1W2,1W3\n"
              ",,2F0,2I0,2F1,2I1,2F2,2I2,2W0,2F3,2I3,2W1,2W2,2W3\n"},
        Table{"ZB-H2",
              {.ranks = 2, .microbatches = 4},
              "0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3\n"
              ",1F0,1I0,1F1,1I1,1F2,1I2,1W0,1F3,1I3,1W1,1W2,1W3\n"},
        Table{"LoopedBFS",
              {.ranks = 2, .stages_per_rank = 2, .microbatches = 2},
              "0F0,0F1,2F0,2F1,,,2B1,2B0,0B1,0B0\n"
              ",1F0,1F1,3F0,3F1,3B1,3B0,1B1,1B0\n"},
        Table{"Interleaved1F1B",
              {.ranks = 2, .stages_per_rank = 2, .microbatches = 2},
              "0F0,0F1,2F0,2F1,,,,2B0,,2B1,,0B0,,0B1\n"
              ",1F0,1F1,,3F0,3B0,3F1,3B1,,1B0,,1B1\n"},
        Table{"InterleavedZeroBubble",
              {.ranks = 2, .stages_per_rank = 2, .microbatches = 2},
              "0F0,0F1,2F0,,2F1,2I0,2W0,2I1,2W1,0I0,0W0,0I1,0W1\n"
              ",1F0,1F1,3F0,3I0,3F1,3I1,3W0,1I0,3W1,1I1,1W0,1W1\n"},
        Table{"ZBVZeroBubble",
              {.ranks = 2, .microbatches = 1},
              "0F0,,,3F0,3I0,3W0,,,,0I0,0W0,,,,,,,\n"
              ",1F0,2F0,,,2I0,2W0,,1I0,1W0,,,,,,,,,\n"},
        Table{"V-Min",
              {.ranks = 2, .microbatches = 1},
              "0F0,,,3F0,3I0,3W0,,0I0,0W0\n"
              ",1F0,2F0,,,2I0,1I0,2W0,1W0\n"},
        Table{"V-Half", {.ranks = 1, .microbatches = 2}, "0F0,1F0,1I0,0I0,1W0,0F1,0W0,1F1,1I1,0I1,1W1,0W1\n"},
        Table{"1F1B-V",
              {.ranks = 2, .microbatches = 3},
              "0F0,,,3F0,0F1,3B0,,3F1,0F2,3B1,,3F2,0B0,3B2,0B1,,0B2\n"
              ",1F0,2F0,,,1F1,2F1,2B0,1B0,1F2,2F2,2B1,1B1,,2B2,1B2\n"},
        Table{"DualPipeV",
              {.ranks = 2, .microbatches = 4},
              "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,3B3,0I2,"
              "0W2,0I3,0W3\n"
              "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,"
              "2W3,1W3\n"},
        Table{"DualPipeV", {.ranks = 2, .microbatches = 1}, "0F0,3F0,3I0,3W0,0B0\n1F0,2F0,2B0,1B0\n"}),
    [](const auto& test) {
      std::string name = test.param.name;
      std::erase(name, '-');
      return name + "_p" + std::to_string(test.param.shape.ranks) + "_m" +
             std::to_string(test.param.shape.microbatches) + "_L" + std::to_string(test.param.shape.memory_limit);
    });

TEST(Generator, RoundsNeedNotDivideTheMicrobatches) {
  // 5 microbatches on 2 ranks: a round of 3, then one of 2.
  EXPECT_THAT(csv_of("Interleaved1F1B", {.ranks = 2, .stages_per_rank = 2, .microbatches = 5}),
              testing::StartsWith("0F0,0F1,0F2,2F0,2F1,,2F2,2B0,0F3,2B1,0F4,2B2,2F3,"));
}

TEST(Generator, ZbH2WorksWithoutAGap) {
  const Schedule schedule = make_schedule("ZB-H2", {.ranks = 5, .microbatches = 15});
  for (int r = 0; r < 5; ++r) {
    const Row& row = schedule.rows[static_cast<std::size_t>(r)];
    EXPECT_EQ(std::count_if(row.begin(), row.end(), [](const Action& a) { return a.is_idle(); }), r) << "rank " << r;
  }
}

TEST(Generator, NamesAreFoundWhateverTheirCaseAndDashes) {
  EXPECT_EQ(find_generator("interleaved1f1b").name, "Interleaved1F1B");
  EXPECT_EQ(find_generator("ZBH1").name, "ZB-H1");
  EXPECT_EQ(find_generator("v_half").name, "V-Half");
  EXPECT_EQ(generators().size(), 14U);
  for (const Generator* generator : generators()) EXPECT_EQ(&find_generator(generator->name), generator);
}

TEST(Generator, AnUnknownNameListsTheKnownOnes) {
  try {
    find_generator("2F2B");
    FAIL();
  } catch (const InvalidArgument& error) {
    for (const Generator* generator : generators()) {
      EXPECT_THAT(error.what(), testing::HasSubstr(std::string(generator->name)));
    }
  }
}

struct BadShape {
  const char* name;
  Shape shape;
  const char* says;
};

class RefusesShape : public testing::TestWithParam<BadShape> {};

TEST_P(RefusesShape, WithTheValue) {
  try {
    make_schedule(GetParam().name, GetParam().shape);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().says));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Generator, RefusesShape,
    testing::Values(BadShape{"GPipe", {.ranks = 0, .microbatches = 4}, "ranks must be at least 1, got 0"},
                    BadShape{"GPipe", {.ranks = 2, .microbatches = 0}, "microbatches must be at least 1, got 0"},
                    BadShape{"GPipe", {.ranks = 2, .microbatches = -3}, "got -3"},
                    BadShape{"GPipe", {.ranks = 2, .stages_per_rank = 2, .microbatches = 4}, "1 stage per rank, got 2"},
                    BadShape{"ZBVZeroBubble", {.ranks = 2, .stages_per_rank = 3, .microbatches = 4}, "got 3"},
                    BadShape{"LoopedBFS", {.ranks = 2, .stages_per_rank = -1, .microbatches = 4}, "got -1"},
                    BadShape{"1F1B", {.ranks = 2, .microbatches = 4, .memory_limit = 3}, "takes no memory limit"},
                    BadShape{"Eager1F1B", {.ranks = 2, .microbatches = 4, .memory_limit = -3}, "got -3"},
                    BadShape{"GPipe", {.ranks = 2, .microbatches = 1'000'000'000}, "1000000000 microbatches"},
                    BadShape{"GPipe", {.ranks = INT32_MAX, .microbatches = INT32_MAX}, "limit of 134217728 slots"},
                    BadShape{"LoopedBFS",
                             {.ranks = 1, .stages_per_rank = INT32_MAX, .microbatches = 1},
                             "2147483647 stages per rank"}));

}  // namespace
}  // namespace stagecraft

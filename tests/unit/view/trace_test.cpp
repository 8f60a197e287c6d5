#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "stagecraft/schedule/csv.h"
#include "stagecraft/view/render.h"

namespace stagecraft {
namespace {

using Json = nlohmann::json;

Json trace(const Schedule& schedule) {
  std::ostringstream out;
  write_trace(out, schedule);
  return Json::parse(out.str());
}

std::vector<Json> events(std::string_view csv, std::string_view phase) {
  std::vector<Json> found;
  const Json json = trace(Schedule::from_rows(parse_csv(csv)));
  for (const Json& event : json.at("traceEvents")) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

constexpr std::string_view kLowered =
    "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD\n"
    ",,1RECV_F0,1F0,1SEND_B0,1B0,\n";

TEST(Trace, OneSlicePerAction) {
  const auto slices = events(kLowered, "X");
  ASSERT_EQ(slices.size(), 10U);
  EXPECT_EQ(slices[0], Json::parse(R"({"ph": "X", "name": "0UNSHARD", "cat": "sharding", "pid": 0, "tid": 4, "ts": 0,
                                       "dur": 1, "args": {"stage": 0, "kind": "UNSHARD"}})"));
  EXPECT_EQ(slices[1],
            Json::parse(R"({"ph": "X", "name": "0F0", "cat": "compute", "pid": 0, "tid": 1, "ts": 1, "dur": 1,
                                       "args": {"stage": 0, "microbatch": 0, "kind": "F"}})"));
  EXPECT_EQ(slices[8],
            Json::parse(R"({"ph": "X", "name": "1SEND_B0", "cat": "communication", "pid": 1, "tid": 3, "ts": 4,
                                       "dur": 1, "args": {"stage": 1, "microbatch": 0, "kind": "SEND_B"}})"));
}

TEST(Trace, NamesOneProcessPerRankAndTheThreadsInUse) {
  std::map<std::pair<int, int>, std::string> threads;
  std::map<int, std::string> processes;
  for (const Json& event : events("0UNSHARD,0F0,0SEND_F0\n1F0\n\n", "M")) {
    const int pid = event.at("pid");
    if (event.at("name") == "process_name") processes[pid] = event.at("args").at("name");
    if (event.at("name") == "thread_name") threads[{pid, event.at("tid")}] = event.at("args").at("name");
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "Rank 0"}, {1, "Rank 1"}, {2, "Rank 2"}}));
  EXPECT_EQ(threads, (std::map<std::pair<int, int>, std::string>{{{0, 1}, "compute"},
                                                                 {{0, 3}, "communication"},
                                                                 {{0, 4}, "sharding"},
                                                                 {{1, 1}, "compute"},
                                                                 {{2, 1}, "compute"}}));
}

TEST(Trace, HalvesOfAnOverlapRunSideBySide) {
  const auto slices = events("1F0,(0F5;1B2)OVERLAP_F_B\n", "X");
  ASSERT_EQ(slices.size(), 3U);
  EXPECT_EQ(slices[1].at("name"), "0F5");
  EXPECT_EQ(slices[2].at("name"), "1B2");
  EXPECT_NE(slices[1].at("tid"), slices[2].at("tid"));
  for (const std::size_t half : {1U, 2U}) {
    EXPECT_EQ(slices[half].at("ts"), 1);
    EXPECT_EQ(slices[half].at("args").at("overlap"), "(0F5;1B2)OVERLAP_F_B");
  }
}

TEST(Trace, AnArrowFromEverySendToItsReceive) {
  const auto begins = events(kLowered, "s");
  const auto ends = events(kLowered, "f");
  ASSERT_EQ(begins.size(), 2U);
  ASSERT_EQ(ends.size(), 2U);
  std::map<int, Json> begin_of;
  for (const Json& begin : begins) begin_of[begin.at("id")] = begin;
  ASSERT_EQ(begin_of.size(), 2U);
  for (const Json& end : ends) {
    const Json& begin = begin_of.at(end.at("id"));
    EXPECT_NE(begin.at("pid"), end.at("pid"));
    EXPECT_EQ(begin.at("name"), end.at("name"));
    EXPECT_EQ(begin.at("cat"), end.at("cat"));
    EXPECT_EQ(end.at("bp"), "e");
    EXPECT_LT(begin.at("ts").get<double>(), end.at("ts").get<double>());
    EXPECT_EQ(static_cast<int>(begin.at("ts").get<double>()), static_cast<int>(end.at("ts").get<double>()));
  }
}

TEST(Trace, MessagesDifferByStageMicrobatchAndDirection) {
  const std::string_view csv =
      "0F0,0SEND_F0,0SEND_F1,0RECV_B0\n"
      "1F0,1RECV_F0,1RECV_F1,1SEND_B0,1SEND_F0,1RECV_B0\n"
      "2F0,,,,2RECV_F0,2SEND_B0\n";
  std::map<int, int> ends;
  for (const Json& event : events(csv, "f")) ++ends[event.at("id")];
  EXPECT_EQ(ends.size(), 5U);
}

TEST(Trace, AMessageWithOneEndHasNoArrow) {
  EXPECT_TRUE(events("0F0,0SEND_F0,0RECV_B0\n1F0\n", "s").empty());
  EXPECT_TRUE(events("0F0,0SEND_F0,0RECV_B0\n1F0\n", "f").empty());
}

TEST(Trace, EmptyScheduleAndAnyName) {
  Schedule schedule;
  schedule.name = "a\"\n\xff";
  const Json json = trace(schedule);
  EXPECT_EQ(json.at("traceEvents"), Json::array());
  EXPECT_EQ(json.at("otherData").at("schedule"), "a\"\n\xEF\xBF\xBD");
}

}  // namespace
}  // namespace stagecraft

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/view/render.h"

namespace stagecraft {
namespace {

std::string svg(const Schedule& schedule) {
  std::ostringstream out;
  write_svg(out, schedule);
  return out.str();
}

std::string svg(std::string_view csv, std::string name = "test") {
  return svg(Schedule::from_rows(parse_csv(csv), std::move(name)));
}

int count(std::string_view text, std::string_view piece) {
  int n = 0;
  for (auto at = text.find(piece); at != std::string_view::npos; at = text.find(piece, at + piece.size())) ++n;
  return n;
}

bool is_reference(std::string_view text) {
  for (const std::string_view known : {"&amp;", "&lt;", "&gt;", "&quot;"}) {
    if (text.starts_with(known)) return true;
  }
  return false;
}

/// Enough of XML for what the writer uses: tags balance, attributes are quoted, '&' and '<' are escaped. Empty when
/// well formed, else what is wrong.
std::string xml_fault(std::string_view text) {
  std::vector<std::string> open;
  std::size_t roots = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) < 0x20 && text[i] != '\n') return "control character";
    if (text[i] == '&' && !is_reference(text.substr(i))) return "bare &: " + std::string(text.substr(i, 20));
    if (text[i] != '<') continue;
    const auto end = text.find('>', i);
    if (end == std::string_view::npos) return "tag without end";
    const std::string_view tag = text.substr(i + 1, end - i - 1);
    if (tag.find('<') != std::string_view::npos) return "'<' in tag " + std::string(tag);
    if (count(tag, "\"") % 2 != 0) return "unbalanced quotes in " + std::string(tag);
    if (tag.starts_with("/")) {
      if (open.empty() || open.back() != tag.substr(1)) return "closes what is not open: " + std::string(tag);
      open.pop_back();
    } else if (!tag.ends_with("/")) {
      if (open.empty()) ++roots;
      open.emplace_back(tag.substr(0, tag.find(' ')));
    }
    i = end;
  }
  if (roots != 1) return "not one root";
  return open.empty() ? "" : "left open: " + open.back();
}

constexpr std::string_view kOneFOneB = "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n";

TEST(Svg, IsWellFormedAndSaysWhatItShows) {
  const std::string text = svg(kOneFOneB, "1F1B");
  EXPECT_EQ(xml_fault(text), "");
  EXPECT_NE(text.find(">1F1B</text>"), std::string::npos);
  EXPECT_NE(text.find("2 ranks, 2 stages, 2 microbatches, 6 steps, 33.3% of slots idle"), std::string::npos);
  EXPECT_NE(text.find(">Rank 1</text>"), std::string::npos);
  EXPECT_NE(text.find("<title>1B0 at step 2</title>"), std::string::npos);
  EXPECT_EQ(count(text, " at step "), 8);
}

TEST(Svg, LegendHasOnlyWhatIsPresent) {
  const std::string compute = svg(kOneFOneB);
  EXPECT_EQ(count(compute, ">F forward<"), 1);
  EXPECT_EQ(count(compute, ">idle<"), 1);
  for (const char* absent : {"weight gradient", "input gradient", "overlap", "SEND_F", "UNSHARD", "stage of a rank"}) {
    EXPECT_EQ(count(compute, absent), 0) << absent;
  }
  const std::string lowered =
      svg("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1F0,1B0,1RECV_F0,1SEND_B0,,,\n");
  for (const char* present :
       {">U UNSHARD<", ">R RESHARD<", ">G REDUCE_GRAD<", ">SEND_F<", ">RECV_F<", ">SEND_B<", ">RECV_B<"}) {
    EXPECT_EQ(count(lowered, present), 1) << present;
  }
  EXPECT_EQ(xml_fault(lowered), "");
  EXPECT_EQ(count(svg("0F0,0I0,0W0\n"), ">idle<"), 0);
}

TEST(Svg, BothHalvesOfAnOverlapAreDrawn) {
  const std::string text = svg("0F0,(0F7;1B5)OVERLAP_F_B,1F0\n");
  EXPECT_EQ(xml_fault(text), "");
  EXPECT_EQ(count(text, "<title>(0F7;1B5)OVERLAP_F_B at step 1</title>"), 2);
  EXPECT_EQ(count(text, ">7</text>"), 1);
  EXPECT_EQ(count(text, ">5</text>"), 1);
}

TEST(Svg, StagesOfARankHaveDifferentShades) {
  const std::string text = svg("0F0,1F0\n");
  EXPECT_NE(text.find("<g fill=\"#56b4e9\">"), std::string::npos);
  EXPECT_EQ(count(text, "<g fill=\"#"), 2);
  EXPECT_EQ(count(text, "full to pale colour"), 1);
}

TEST(Svg, AnyNameIsEscaped) {
  const std::string text = svg(kOneFOneB, "<a & \"b\">\x01\xff\xc3\xa9");
  EXPECT_EQ(xml_fault(text), "");
  EXPECT_NE(text.find("&lt;a &amp; &quot;b&quot;&gt;\xEF\xBF\xBD\xEF\xBF\xBD\xc3\xa9"), std::string::npos);
}

TEST(Svg, ALongNameIsShortenedInTheHeading) {
  const std::string text = svg(kOneFOneB, std::string(500, 'x'));
  EXPECT_EQ(count(text, std::string(500, 'x')), 1);  // the document's title keeps it
  EXPECT_NE(text.find(">" + std::string(79, 'x') + "\xE2\x80\xA6</text>"), std::string::npos);
}

TEST(Svg, RaggedAndEmptySchedules) {
  EXPECT_EQ(xml_fault(svg("0F0\n\n1F0,1B0,1F1\n")), "");
  EXPECT_EQ(xml_fault(svg(Schedule{})), "");
  EXPECT_NE(svg(Schedule{}).find("nothing to draw"), std::string::npos);
  Schedule no_steps;
  no_steps.rows.resize(3);
  EXPECT_EQ(xml_fault(svg(no_steps)), "");
}

TEST(Svg, ActionsOnStagesThePlacementDoesNotHave) {
  Schedule schedule;
  schedule.rows = parse_csv("16777215F2147483646,9UNSHARD\n");
  EXPECT_EQ(xml_fault(svg(schedule)), "");
}

Schedule filled(int ranks, int steps) {
  Schedule schedule;
  schedule.rows.resize(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    for (int step = 0; step < steps; ++step) {
      schedule.rows[static_cast<std::size_t>(rank)].push_back(Action::forward(StageId(rank), MicrobatchId(step)));
    }
  }
  return schedule;
}

/// The smallest font-size in the text.
double smallest_font(std::string_view text) {
  constexpr std::string_view kAttribute = "font-size=\"";
  double smallest = 100;
  for (auto at = text.find(kAttribute); at != std::string_view::npos; at = text.find(kAttribute, at + 1)) {
    smallest = std::min(smallest, std::stod(std::string(text.substr(at + kAttribute.size(), 8))));
  }
  return smallest;
}

TEST(Svg, ManyRanksKeepTheirLabelsAndReadableFonts) {
  const std::string text = svg(filled(64, 400));
  EXPECT_EQ(count(text, ">399</text>"), 64);
  EXPECT_EQ(count(text, " at step "), 0);  // too many cells for hover texts
  EXPECT_GE(smallest_font(text), 7.0);
  EXPECT_LT(text.size(), 64U * 400U * 60U);
  EXPECT_EQ(xml_fault(text), "");
}

TEST(Svg, LabelsGoWhenCellsCannotHoldThem) {
  const std::string text = svg(filled(2, 5000));
  EXPECT_EQ(count(text, ">4999</text>"), 0);
  EXPECT_EQ(count(text, "numbers are microbatches"), 0);
  EXPECT_GE(smallest_font(text), 7.0);
}

TEST(Svg, LabelsOfMessagesGoFirst) {
  Schedule schedule = filled(2, 900);
  schedule.rows[1].front() = Action(ActionKind::kRecvForward, StageId(1), MicrobatchId(123456));
  const std::string text = svg(schedule);
  EXPECT_EQ(count(text, ">777</text>"), 2);
  EXPECT_EQ(count(text, ">123456</text>"), 0);
}

TEST(Svg, ASmallPictureIsASmallFile) { EXPECT_LT(svg(filled(4, 22)).size(), 15'000U); }

TEST(Svg, RefusesMoreThanAViewerCanShow) {
  EXPECT_NO_THROW(svg(filled(2, 100'000)));
  std::ostringstream out;
  try {
    write_svg(out, filled(2, 100'001));
    FAIL() << "no refusal";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(
        error.what(),
        "2 ranks over 100001 steps are 200002 cells, more than the 200000 an SVG can show: use --format csv or "
        "--format trace, or draw fewer microbatches");
  }
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace stagecraft

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/graph/cut.h"
#include "stagecraft/graph/report.h"
#include "support/message_of.h"
#include "support/program_builder.h"

namespace stagecraft::graph {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kEnd = ModuleCut::At::kEnd;

/// Two nodes in each of three modules, the second of which is called twice.
struct Modules : ProgramBuilder {
  Modules() {
    ValueId value = user("x", {{8, "s0"}});
    for (const char* module : {"first", "shared", "middle", "shared"}) {
      in(module);
      value = node("aten::relu", {value});
      value = node("aten::tanh", {value});
    }
    output(value);
  }
};

TEST(Places, ModulesBeginAndEnd) {
  Modules modules;
  EXPECT_THAT(places_of(modules.program(), {{"middle"}}), ElementsAre(4));
  EXPECT_THAT(places_of(modules.program(), {{"first", kEnd}}), ElementsAre(2));
  EXPECT_THAT(places_of(modules.program(), {{"middle", kEnd}, {"shared"}}), ElementsAre(2, 6));
  EXPECT_THAT(places_of(modules.program(), {{"shared", kEnd}}), ElementsAre(8));
}

TEST(Places, AllModulesThatAreNotThereAreNamed) {
  Modules modules;
  EXPECT_THAT(message_of([&] {
                places_of(modules.program(), {{"none"}, {"middle"}, {"nowhere"}});
              }),
              AllOf(HasSubstr("'none', 'nowhere'"), HasSubstr("first, shared, middle")));
}

TEST(Places, TheSamePlaceTwiceIsRefused) {
  Modules modules;
  EXPECT_THAT(message_of([&] {
                places_of(modules.program(), {{"first", kEnd}, {"shared"}});
              }),
              AllOf(HasSubstr("the end of 'first'"), HasSubstr("the beginning of 'shared'"), HasSubstr("same place")));
}

TEST(Places, MarksAndAnnotations) {
  Modules modules;
  Program& program = modules.program();
  EXPECT_THAT(message_of([&] { marked_places(program); }), HasSubstr("no marks"));
  for (std::size_t i = 0; i < program.nodes.size(); ++i) program.nodes[i].stage = i == 4 ? -1 : static_cast<int>(i / 3);
  EXPECT_THAT(marked_places(program), ElementsAre(3, 6));
  program.nodes[7].stage = 0;
  EXPECT_THAT(message_of([&] { marked_places(program); }), AllOf(HasSubstr("'tanh_7'"), HasSubstr("must ascend")));
  program.marks = {5};
  EXPECT_THAT(marked_places(program), ElementsAre(5));
}

TEST(Places, LegalCutsNameTheOutermostModule) {
  Modules modules;
  const std::vector<LegalCut> cuts = legal_module_cuts(modules.program());
  ASSERT_EQ(cuts.size(), 2U);  // before the first there is nothing
  EXPECT_EQ(cuts[0].module, "shared");
  EXPECT_EQ(cuts[0].place, 2);
  EXPECT_EQ(cuts[1].module, "middle");
  EXPECT_EQ(cuts[1].bytes, 16);
}

TEST(Report, FiguresAndText) {
  EXPECT_EQ(bytes_text(312), "312 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1250000), "1.25M");
  EXPECT_EQ(capped_sum(std::int64_t{1} << 62, std::int64_t{1} << 62), INT64_MAX);
  Modules modules;
  const CutProgram halves = cut(modules.program(), {4});
  const std::vector<StageFigures> figures = figures_of(modules.program(), halves);
  EXPECT_EQ(figures[0].bytes_out, 16);
  EXPECT_EQ(figures[1].bytes_in, 16);
  EXPECT_EQ(figures[1].nodes, 4);
  EXPECT_THAT(summary(modules.program(), halves), HasSubstr("between 0 and 1: tanh_3 float32 [4]"));
}

}  // namespace
}  // namespace stagecraft::graph

// The sweep and the balancing against the cutter itself, on small random programs.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "stagecraft/graph/cut.h"
#include "stagecraft/graph/operators.h"
#include "stagecraft/graph/report.h"
#include "support/message_of.h"
#include "support/program_builder.h"

namespace stagecraft::graph {
namespace {

/// "m3". GCC 12 takes "m" + std::to_string(3) for an overflow.
std::string numbered(char letter, int number) {
  std::string text = std::to_string(number);
  text.insert(text.begin(), letter);
  return text;
}

/// Chains with skips, constants, sizes, views and changes in place. Every node is a module of its own.
class RandomProgram : public ProgramBuilder {
 public:
  explicit RandomProgram(unsigned seed, int nodes) : random_(seed) {
    data_ = {user("x", any_sizes())};
    if (below(3) == 0) data_.push_back(user("late", any_sizes()));
    weights_ = {parameter("w0"), parameter("w1")};
    constants_ = {buffer("table")};
    const ValueId counter = buffer("counter");
    for (int i = 0; i < nodes; ++i) add(i, counter);
    output(data_.back());
    if (below(4) == 0) output(pick(data_));
  }

 private:
  int below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }
  ValueId pick(const std::vector<ValueId>& from) {
    // Mostly the latest, so that there are places to cut at.
    return below(3) != 0 ? from.back() : from[static_cast<std::size_t>(below(static_cast<int>(from.size())))];
  }
  std::vector<Size> any_sizes() {
    std::vector<Size> sizes = {{1 + below(9), {}}};
    if (below(2) == 0) sizes.push_back(size(numbered('s', below(2)), 1 + below(5)));
    return sizes;
  }

  void add(int i, ValueId counter) {
    in(numbered('m', i));
    const int kind = below(20);
    if (kind < 2) {
      constants_.push_back(node("aten::cos", {pick(constants_)}));
    } else if (kind < 4) {
      const std::string name = numbered('s', below(2));
      const ValueId tensor = below(4) == 0 ? pick(constants_) : pick(data_);
      numbers_.push_back(number("aten::sym_size.int", {tensor}, size(name, 3)));
    } else if (kind < 6 && !numbers_.empty()) {
      numbers_.push_back(
          number("_operator.mul", {pick(numbers_), pick(numbers_)}, below(2) == 0 ? size("s1", 3) : size("s0*s1", 9)));
    } else if (kind < 8 && !numbers_.empty()) {
      constants_.push_back(node("aten::full", {pick(numbers_)}, any_sizes()));
    } else if (kind < 10) {
      data_.push_back(node("aten::view", {pick(data_)}, any_sizes()));
    } else if (kind < 11) {
      data_.push_back(node("aten::mul_.Tensor", {pick(data_)}, any_sizes()));
    } else if (kind < 12) {
      data_.push_back(node("aten::relu", {pick(weights_)}, any_sizes()));
    } else if (kind < 13) {
      data_.push_back(node("aten::add_.Tensor", {counter, pick(data_)}));
    } else {
      std::vector<ValueId> uses = {pick(data_)};
      if (below(2) == 0) uses.push_back(pick(data_));
      if (below(2) == 0) uses.push_back(pick(weights_));
      if (below(3) == 0) uses.push_back(pick(constants_));
      if (below(3) == 0 && !numbers_.empty()) uses.push_back(pick(numbers_));
      data_.push_back(node("aten::add.Tensor", uses, any_sizes()));
    }
  }

  std::mt19937 random_;
  std::vector<ValueId> data_;
  std::vector<ValueId> weights_;
  std::vector<ValueId> constants_;
  std::vector<ValueId> numbers_;
};

/// Nodes that every stage recomputes: a cut before one is the same as a cut before the next node.
bool is_made_again(const Node& node) {
  return node.target == "aten::cos" || node.target == "aten::full" || node.target == "aten::sym_size.int" ||
         node.target == "_operator.mul";
}

TEST(Balance, TheSweepFindsWhatTheCutterAllows) {
  int legal = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    RandomProgram random(seed, 6 + static_cast<int>(seed % 12));
    const Program& program = random.program();
    const std::vector<LegalCut> swept = legal_module_cuts(program);
    for (int place = 0; place < static_cast<int>(program.nodes.size()); ++place) {
      const auto found =
          std::find_if(swept.begin(), swept.end(), [&](const LegalCut& cut) { return cut.place == place; });
      const std::string reason = reason_against(program, {place});
      if (found == swept.end()) {
        EXPECT_TRUE(!reason.empty() || is_made_again(program.nodes[static_cast<std::size_t>(place)]))
            << "seed " << seed << ", place " << place;
        continue;
      }
      ++legal;
      ASSERT_EQ(reason, "") << "seed " << seed << ", place " << place;
      EXPECT_EQ(found->bytes, figures_of(program, cut(program, {place}))[0].bytes_out)
          << "seed " << seed << ", place " << place;
    }
  }
  EXPECT_GT(legal, 500);
}

struct Optimum {
  double largest = std::numeric_limits<double>::infinity();
  std::vector<std::vector<int>> legal;
};

double largest_of(const Program& program, const std::vector<int>& places) {
  double most = 0;
  double stage = 0;
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    if (std::find(places.begin(), places.end(), static_cast<int>(i)) != places.end()) stage = 0;
    stage += work_of(program, program.nodes[i]);
    most = std::max(most, stage);
  }
  return most;
}

double sent_by(const Program& program, const std::vector<int>& places) {
  double bytes = 0;
  for (const int place : places) {
    bytes += static_cast<double>(figures_of(program, cut(program, {place}))[0].bytes_out);
  }
  return bytes;
}

Optimum search(const Program& program, int stages) {
  std::vector<int> candidates;
  for (const LegalCut& place : legal_module_cuts(program)) candidates.push_back(place.place);
  Optimum optimum;
  std::vector<bool> chosen(candidates.size(), false);
  if (static_cast<int>(candidates.size()) < stages - 1) return optimum;
  std::fill(chosen.begin(), chosen.begin() + stages - 1, true);
  do {
    std::vector<int> places;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i]) places.push_back(candidates[i]);
    }
    if (!reason_against(program, places).empty()) continue;
    optimum.legal.push_back(places);
    optimum.largest = std::min(optimum.largest, largest_of(program, places));
  } while (std::prev_permutation(chosen.begin(), chosen.end()));
  return optimum;
}

/// A stage that takes only numbers is allowed, but balancing does not propose it.
bool takes_tensors(const Program& program, const std::vector<int>& places) {
  const CutProgram result = cut(program, places);
  std::vector<bool> leaves(result.stages.size(), false);
  std::vector<bool> takes(result.stages.size(), false);
  for (const CutEdge& edge : result.edges) {
    if (!program.values[static_cast<std::size_t>(edge.value)].is_tensor()) continue;
    leaves[static_cast<std::size_t>(edge.from)] = true;
    takes[static_cast<std::size_t>(edge.to)] = true;
  }
  leaves.back() = takes.front() = true;
  return std::find(leaves.begin(), leaves.end(), false) == leaves.end() &&
         std::find(takes.begin(), takes.end(), false) == takes.end();
}

TEST(Balance, NothingIsBetterThanTheBalancedPlaces) {
  int compared = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    RandomProgram random(1000 + seed, 6 + static_cast<int>(seed % 9));
    const Program& program = random.program();
    for (const int stages : {2, 3, 4}) {
      Optimum optimum = search(program, stages);
      std::erase_if(optimum.legal, [&](const std::vector<int>& places) { return !takes_tensors(program, places); });
      std::vector<int> found;
      const std::string refusal = message_of([&] { found = balanced_places(program, stages); });
      ASSERT_EQ(found.empty(), optimum.legal.empty()) << "seed " << seed << ", stages " << stages << ": " << refusal;
      if (found.empty()) continue;
      ++compared;
      ASSERT_EQ(reason_against(program, found), "") << "seed " << seed << ", stages " << stages;
      double largest = std::numeric_limits<double>::infinity();
      for (const auto& places : optimum.legal) largest = std::min(largest, largest_of(program, places));
      EXPECT_LE(largest_of(program, found), 1.1 * largest * (1 + 1e-9));
      double least = std::numeric_limits<double>::infinity();
      for (const auto& places : optimum.legal) {
        if (largest_of(program, places) <= 1.1 * largest) least = std::min(least, sent_by(program, places));
      }
      EXPECT_LE(sent_by(program, found), least) << "seed " << seed << ", stages " << stages;
    }
  }
  EXPECT_GT(compared, 100);
}

TEST(Balance, WorkMayBeGiven) {
  ProgramBuilder builder;
  ValueId value = builder.user("x", {{4, {}}});
  for (int i = 0; i < 6; ++i) value = builder.node("aten::relu", {value});
  builder.output(value);
  EXPECT_EQ(balanced_places(builder.program(), 2), (std::vector<int>{3}));
  EXPECT_EQ(balanced_places(builder.program(), 2, {9, 1, 1, 1, 1, 1}), (std::vector<int>{1}));
  EXPECT_EQ(balanced_places(builder.program(), 3, {0, 0, 0, 0, 0, 0}).size(), 2U);
  EXPECT_TRUE(balanced_places(builder.program(), 1).empty());
  EXPECT_NE(message_of([&] { balanced_places(builder.program(), 7); }).find("5 places, too few for 7"),
            std::string::npos);
  EXPECT_NE(message_of([&] { balanced_places(builder.program(), 2, {1}); }).find("1 nodes, but there are 6"),
            std::string::npos);
  EXPECT_NE(message_of([&] { balanced_places(builder.program(), 0); }).find("at least 1"), std::string::npos);
  EXPECT_NE(message_of([&] {
              balanced_places(builder.program(), 2, {1, 1, -1, 1, 1, 1});
            }).find("not negative"),
            std::string::npos);
}

/// If this takes seconds, a large model takes minutes.
TEST(Balance, LongProgramsAreQuick) {
  ProgramBuilder builder;
  ValueId value = builder.user("x", {{8, "s0"}});
  const ValueId weight = builder.parameter("weight");
  for (int i = 0; i < 20000; ++i) {
    builder.in(numbered('m', i / 10));
    value = builder.node("aten::mul.Tensor", {value, weight}, {{8, "s0"}});
  }
  builder.output(value);
  EXPECT_EQ(balanced_places(builder.program(), 8).size(), 7U);
  EXPECT_EQ(legal_module_cuts(builder.program()).size(), 1999U);
}

}  // namespace
}  // namespace stagecraft::graph

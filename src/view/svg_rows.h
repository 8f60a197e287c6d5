#pragma once

#include <array>
#include <string>

#include "svg_layout.h"
#include "svg_style.h"

namespace stagecraft::detail {

/// Draws the cells of one rank at a time. Cells of one colour form one group per row, which keeps the file small.
class SvgRows {
 public:
  SvgRows(const Schedule& schedule, const SvgContents& contents, const SvgLayout& layout)
      : schedule_(schedule), contents_(contents), layout_(layout) {}

  /// The group of one rank, with step 0 at its top left corner. The text is valid until the next call.
  const std::string& draw(int rank, double top);

 private:
  enum Line { kWhole, kUpper, kLower, kSmall };

  void add_idle(int step, int end);
  void add_action(int step, const Action& action);
  void add_cell(int step, const Action& part, const Action& action, const Box& box);
  void add_label(Line line, int step, const Action& part);
  void put_cells();
  void put_labels();

  const Schedule& schedule_;
  const SvgContents& contents_;
  const SvgLayout& layout_;
  std::string idle_;
  std::array<std::string, static_cast<std::size_t>(kActionKinds) * kShades> cells_;
  std::array<std::string, 4> labels_;
  std::string out_;
};

}  // namespace stagecraft::detail

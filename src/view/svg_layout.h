#pragma once

#include <array>
#include <string>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::detail {

/// What the schedule holds, as far as the picture's measures depend on it.
struct SvgContents {
  int ranks = 0;
  int steps = 0;                             ///< Longest row.
  std::int64_t idle = 0;                     ///< Empty slots, those after the end of a short row included.
  std::array<bool, kActionKinds> present{};  ///< Parts of overlaps count as their own kinds too.
  int compute_label = 0;                     ///< Characters of the longest label in a compute cell, and in any other.
  int other_label = 0;
  int most_stages = 0;  ///< Of any one rank.

  [[nodiscard]] bool has(ActionKind kind) const { return present[static_cast<std::size_t>(kind)]; }
};

SvgContents contents_of(const Schedule& schedule);

/// Sizes in pixels. No font is below 7: labels are dropped rather than drawn smaller.
struct SvgLayout {
  double cell_width = 0;     ///< From one step to the next.
  double cell_height = 0;    ///< Of the coloured part of a row.
  double row_pitch = 0;      ///< From one rank to the next.
  double gap = 0;            ///< Between two cells.
  bool labels = true;        ///< In compute cells.
  bool other_labels = true;  ///< In the others.
  double font = 0;
  double small_font = 0;
  bool hover = true;        ///< A <title> for each cell.
  bool stage_lists = true;  ///< Under the ranks' names.
  double rank_font = 0;
  double left = 0;           ///< Where step 0 begins.
  bool right_names = false;  ///< Names of ranks on the right too, once the left ones scroll out of sight.
  bool top_axis = false;

  [[nodiscard]] double chart_width(const SvgContents& c) const { return c.steps * cell_width; }
};

SvgLayout layout_of(const Schedule& schedule, const SvgContents& contents);

/// "stage 3", "stages 0, 7"; empty when too long to stand beside a row.
std::string stage_list(const Placement& placement, RankId rank);

/// Estimate on the wide side: the fonts of the reader are not known here.
double text_width(std::string_view text, double font);

}  // namespace stagecraft::detail

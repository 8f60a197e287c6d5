#pragma once

#include <array>
#include <string>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::detail {

/// Properties of the schedule that the layout of the picture depends on.
struct SvgContents {
  int ranks = 0;
  int steps = 0;                             ///< Length of the longest row.
  std::int64_t idle = 0;                     ///< Idle slots, including those after the end of a short row.
  std::array<bool, kActionKinds> present{};  ///< Parts of overlaps count as their own kinds too.
  int compute_label = 0;                     ///< Characters of the longest label of a compute cell.
  int other_label = 0;                       ///< The same for all other cells.
  int most_stages = 0;                       ///< Largest number of stages of one rank.

  [[nodiscard]] bool has(ActionKind kind) const { return present[static_cast<std::size_t>(kind)]; }
};

SvgContents contents_of(const Schedule& schedule);

/// Sizes in pixels. No font is below 7: labels are dropped rather than drawn smaller.
struct SvgLayout {
  double cell_width = 0;     ///< From one step to the next.
  double cell_height = 0;    ///< Of the coloured part of a row.
  double row_pitch = 0;      ///< From one rank to the next.
  double gap = 0;            ///< Between two cells.
  bool labels = true;        ///< Draw labels in compute cells.
  bool other_labels = true;  ///< Draw labels in other cells.
  double font = 0;
  double small_font = 0;
  bool hover = true;        ///< Write a <title> for each cell.
  bool stage_lists = true;  ///< Write the stages under the ranks' names.
  double rank_font = 0;
  double left = 0;           ///< x of step 0.
  bool right_names = false;  ///< Repeat the ranks' names on the right, for charts wider than a screen.
  bool top_axis = false;

  [[nodiscard]] double chart_width(const SvgContents& c) const { return c.steps * cell_width; }
};

SvgLayout layout_of(const Schedule& schedule, const SvgContents& contents);

/// "stage 3", "stages 0, 7"; empty when too long to fit beside a row.
std::string stage_list(const Placement& placement, RankId rank);

/// An estimate that is rather too wide, since the reader's fonts are not known.
double text_width(std::string_view text, double font);

}  // namespace stagecraft::detail

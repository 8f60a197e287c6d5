#include "svg_layout.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "svg_page.h"
#include "svg_style.h"

namespace stagecraft::detail {
namespace {

constexpr double kScreen = 1500;   // pixels shown without scrolling
constexpr double kWidest = 20000;  // image viewers support up to 32767
constexpr double kDigit = 0.62;    // width of a digit, in font sizes; the widest common font needs 0.64
constexpr int kHoverCells = 4000;
constexpr std::size_t kLongestStageList = 18;

/// A font size, the padding around a label, and the widest chart to use them for.
struct Size {
  double font;
  double padding;
  double widest;
};

/// From comfortable to the smallest readable size. Small fonts may scroll: some scrolling is better than a smaller
/// font, and a small font is better than no labels.
constexpr std::array<Size, 6> kSizes = {{{12, 7, kScreen},
                                         {11, 7, kScreen},
                                         {10, 6, kScreen},
                                         {9, 5, 1.5 * kScreen},
                                         {8, 4, 1.5 * kScreen},
                                         {7.5, 2.5, kWidest}}};

double small_font(double font) { return std::max(7.0, font - 2); }

/// The narrowest cell width at which the labels fit: all labels, or only those of compute cells.
double width_for(const SvgContents& contents, const Size& size, bool all) {
  const double compute = contents.compute_label * kDigit * size.font + size.padding;
  // Other cells are narrower, and their labels must not touch the tip or the notch.
  const double other = contents.other_label * kDigit * small_font(size.font) + size.padding + 5;
  const double least = (size.font >= 10 ? 2.0 : 1.6) * size.font;
  return std::ceil(std::max({compute, all && contents.other_label > 0 ? other : 0.0, least}));
}

void choose_cells(SvgLayout& layout, const SvgContents& contents) {
  const double largest = contents.ranks > 24 ? 9 : 12;  // many ranks get lower rows
  for (const Size& size : kSizes) {
    if (size.font > largest) continue;
    layout.font = size.font;
    layout.small_font = small_font(size.font);
    layout.cell_width = width_for(contents, size, true);
    if (layout.chart_width(contents) <= size.widest) return;
  }
  layout.other_labels = false;
  layout.cell_width = width_for(contents, kSizes.back(), false);
  if (layout.chart_width(contents) <= kWidest) return;
  layout.labels = false;
  layout.cell_width = std::min(4.0, kWidest / contents.steps);
}

void choose_rows(SvgLayout& layout, const SvgContents& contents) {
  const bool halves = contents.has(ActionKind::kOverlap);
  layout.cell_height = !layout.labels ? (halves ? 16 : 12)
                       : halves       ? 2 * std::round(1.2 * layout.font + 2)
                                      : std::round(1.9 * layout.font + 3);
  layout.gap = !layout.labels ? 0 : 1;
  layout.row_pitch = layout.cell_height + (layout.font >= 9 ? 4 : 2);
}

}  // namespace

double text_width(std::string_view text, double font) {
  double ems = 0;
  for (const char c : text) {
    const bool capital = c >= 'A' && c <= 'Z';
    ems += capital ? 0.7 : c == ' ' || c == ',' || c == ';' || c == 'i' || c == 'l' ? 0.34 : 0.62;
  }
  return ems * font;
}

SvgContents contents_of(const Schedule& schedule) {
  SvgContents contents;
  contents.ranks = schedule.ranks();
  for (const Row& row : schedule.rows) {
    contents.steps = std::max(contents.steps, static_cast<int>(row.size()));
    for (const Action& action : row) {
      contents.present[static_cast<std::size_t>(action.kind())] = true;
      for_each_part(action, [&](const Action& part) {
        if (part.is_idle()) return;
        contents.present[static_cast<std::size_t>(part.kind())] = true;
        int& longest = is_compute(part.kind()) ? contents.compute_label : contents.other_label;
        longest = std::max(longest, static_cast<int>(label_of(part).size()));
      });
    }
  }
  contents.idle = std::int64_t{contents.ranks} * contents.steps - schedule.actions();
  contents.present[static_cast<std::size_t>(ActionKind::kIdle)] = contents.idle > 0;
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
    const auto stages = static_cast<int>(schedule.placement.stages_of(RankId(rank)).size());
    contents.most_stages = std::max(contents.most_stages, stages);
  }
  return contents;
}

std::string stage_list(const Placement& placement, RankId rank) {
  if (rank.value >= placement.ranks() || placement.stages_of(rank).empty()) return {};
  const auto stages = placement.stages_of(rank);
  std::string text = stages.size() == 1 ? "stage " : "stages ";
  for (std::size_t i = 0; i < stages.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(stages[i].value);
    if (text.size() > kLongestStageList) return {};
  }
  return text;
}

SvgLayout layout_of(const Schedule& schedule, const SvgContents& contents) {
  SvgLayout layout;
  choose_cells(layout, contents);
  choose_rows(layout, contents);
  layout.hover = std::int64_t{contents.ranks} * contents.steps <= kHoverCells;
  layout.rank_font = std::clamp(0.5 * layout.cell_height, 7.5, 12.0);
  layout.stage_lists = layout.cell_height >= 22;
  const std::string last_name = "Rank " + std::to_string(std::max(contents.ranks - 1, 0));
  double names = text_width(last_name, layout.rank_font);
  for (int rank = 0; layout.stage_lists && rank < contents.ranks; ++rank) {
    names = std::max(names, text_width(stage_list(schedule.placement, RankId(rank)), 8.5));
  }
  layout.left = std::round(kSvgMargin + names + 8);
  layout.right_names = layout.chart_width(contents) > kScreen * 1.2;
  layout.top_axis = contents.ranks > 16;
  return layout;
}

}  // namespace stagecraft::detail

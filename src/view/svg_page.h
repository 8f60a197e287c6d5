#pragma once

#include <string>
#include <string_view>

#include "stagecraft/schedule/action.h"
#include "svg_layout.h"
#include "svg_style.h"

/// The parts that pictures share: the page with its title and legend, and the rows and the time axis of charts of
/// simulated and recorded runs.
namespace stagecraft::detail {

inline constexpr double kSvgMargin = 16;
inline constexpr double kSvgTitleFont = 16;
inline constexpr double kSvgLegendTop = 60;

/// The start of every picture: the page, its title, the line below, and the pattern of idle time
/// (`url(#stagecraft-idle)`). `name` is the document title; `subtitle` is not escaped.
std::string svg_head(double width, double height, std::string_view name, std::string_view title,
                     std::string_view subtitle);

/// Swatches with their texts for the kinds that are present, broken into lines.
struct SvgLegend {
  std::string text;
  double width = 0;
  double height = 0;
};

/// Starts at (left, top); starts a new line where it would extend beyond `right`.
SvgLegend svg_legend(const SvgContents& contents, bool labels, double left, double top, double right);

// Charts: time to the right, one row per rank.

inline constexpr double kChartLeft = 76;  // x of time 0
inline constexpr double kChartWidth = 1200;
inline constexpr double kChartRight = kChartLeft + kChartWidth;

/// The page with its title and legend, and the top and bottom of the rows.
struct ChartFrame {
  std::string text;
  double top = 0;
  double bottom = 0;
};

/// The frame of a chart with rows `pitch` apart; name, title and subtitle as for `svg_head`.
ChartFrame chart_frame(SvgContents contents, double pitch, std::string_view name, std::string_view title,
                       std::string_view subtitle);

/// Pixels per unit of time such that `whole` fills the chart.
double chart_scale(double whole);

/// The rank's name and the background of its row; write the row's cells next, then `kChartRowEnd`.
std::string chart_row(std::size_t rank, const Box& ground);
inline constexpr std::string_view kChartRowEnd = "</g>\n";

/// The cell of an action, with its label if it fits; `title` is the hover text.
std::string chart_cell(const Action& part, int shade, const Box& box, std::string_view title);

/// The time axis below the rows, from 0 to `whole`; each number is followed by `unit`.
std::string chart_axis(double bottom, double whole, std::string_view unit);

}  // namespace stagecraft::detail

#pragma once

#include <string>
#include <string_view>

#include "stagecraft/schedule/action.h"
#include "svg_layout.h"
#include "svg_style.h"

/// Charts over time, a row for each rank: what those of simulated and of measured runs have in common.
namespace stagecraft::detail {

inline constexpr double kChartLeft = 76;  // where time 0 is
inline constexpr double kChartWidth = 1200;
inline constexpr double kChartRight = kChartLeft + kChartWidth;

/// The page with its title and legend, and where the rows are.
struct ChartFrame {
  std::string text;
  double top = 0;
  double bottom = 0;
};

/// The frame of a chart with rows `pitch` apart; name, title and subtitle as for `svg_head`.
ChartFrame chart_frame(SvgContents contents, double pitch, std::string_view name, std::string_view title,
                       std::string_view subtitle);

/// Pixels for each unit of time, if `whole` is to be seen.
double chart_scale(double whole);

/// The rank's name and the ground of its row; the row's cells come next, and then `kChartRowEnd`.
std::string chart_row(std::size_t rank, const Box& ground);
inline constexpr std::string_view kChartRowEnd = "</g>\n";

/// An action, with its label if there is room, and what a browser shows of it.
std::string chart_cell(const Action& part, int shade, const Box& box, std::string_view title);

/// Times below the rows, from 0 to `whole`, each with its unit.
std::string chart_axis(double bottom, double whole, std::string_view unit);

}  // namespace stagecraft::detail

#include "svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "svg_head.h"
#include "svg_legend.h"

namespace stagecraft::detail {
namespace {

constexpr double kChartFont = 9;
constexpr double kNarrowest = 0.3;  // least visible width of a cell in pixels
constexpr double kMostTicks = 12;

/// 1, 2 or 5 times a power of ten, such that there are at most kMostTicks ticks.
double tick_distance(double whole) {
  const double power = std::pow(10.0, std::floor(std::log10(std::max(whole, 1e-9) / 10)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (whole / (factor * power) <= kMostTicks) return factor * power;
  }
  return 10 * power;
}

}  // namespace

ChartFrame chart_frame(SvgContents contents, double pitch, std::string_view name, std::string_view title,
                       std::string_view subtitle) {
  contents.idle = 1;
  const SvgLegend legend = svg_legend(contents, true, kSvgMargin, kSvgLegendTop, kChartRight);
  ChartFrame frame;
  frame.top = kSvgLegendTop + legend.height + 6;
  frame.bottom = frame.top + pitch * contents.ranks;
  frame.text = svg_head(kChartRight + kSvgMargin, frame.bottom + 34, name, title, subtitle) + legend.text;
  return frame;
}

double chart_scale(double whole) { return whole > 0 ? kChartWidth / whole : 0; }

std::string chart_row(std::size_t rank, const Box& ground) {
  return fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">Rank {}</text>\n"
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"url(#stagecraft-idle)\"/>\n"
      "<g text-anchor=\"middle\" font-size=\"{}\">\n",
      num(ground.x - 8), num(ground.y + ground.height / 2 + 4), rank, num(ground.x), num(ground.y), num(ground.width),
      num(ground.height), num(kChartFont));
}

std::string chart_cell(const Action& part, int shade, const Box& box, std::string_view title) {
  std::string text = fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{}</title></rect>", num(box.x), num(box.y),
      num(std::max(box.width, kNarrowest)), num(box.height), fill_of(part.kind(), shade), title);
  const std::string label = label_of(part);
  if (text_width(label, kChartFont) + 2 <= box.width && kChartFont <= box.height) {
    text += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>", num(box.x + box.width / 2),
                        num(box.y + box.height / 2 + 0.36 * kChartFont), label);
  }
  return text + "\n";
}

std::string chart_axis(double bottom, double whole, std::string_view unit) {
  const double tick = tick_distance(whole);
  std::string text = fmt::format("<g font-size=\"{}\" fill=\"{}\" text-anchor=\"middle\">", num(kChartFont), kFaintInk);
  for (int i = 0; i * tick <= whole; ++i) {
    text += fmt::format("<text x=\"{}\" y=\"{}\">{:g}{}</text>", num(kChartLeft + chart_scale(whole) * i * tick),
                        num(bottom + 9), i * tick, unit);
  }
  return text + "</g>\n";
}

}  // namespace stagecraft::detail

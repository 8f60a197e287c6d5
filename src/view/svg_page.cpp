#include "svg_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "escape.h"

namespace stagecraft::detail {

std::string svg_head(double width, double height, std::string_view name, std::string_view title,
                     std::string_view subtitle) {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" )"
      R"(font-family="system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif" font-size="11" fill="{2}">
<title>{3}</title>
<defs><pattern id="stagecraft-idle" width="6" height="6" patternUnits="userSpaceOnUse">)"
      R"(<path fill="{4}" d="M0 0h6v6h-6z"/><path stroke="#cdd5de" d="M-1 1l2-2M0 6l6-6M5 7l2-2"/></pattern></defs>
<path fill="#fff" d="M0 0h{0}v{1}h-{0}z"/>
<text x="{5}" y="30" font-size="{6}" font-weight="600">{7}</text>
<text x="{5}" y="48" fill="{8}">{9}</text>
)",
      num(width), num(height), kInk, xml_escaped(name), fill_of(ActionKind::kIdle, 0), num(kSvgMargin),
      num(kSvgTitleFont), xml_escaped(title), kFaintInk, subtitle);
}

namespace {

constexpr double kLegendFont = 10.5;
constexpr double kLine = 20;
constexpr double kSwatch = 14;
constexpr int kMostStrips = 6;  // shades shown in one swatch

/// One strip per stage of a rank, so that the legend shows which shade comes first.
std::string shaded_swatch(ActionKind kind, int stages, Box box) {
  std::string text;
  const int strips = std::clamp(stages, 1, kMostStrips);
  box.width /= strips;
  for (int i = 0; i < strips; ++i, box.x += box.width) {
    text += fmt::format("<path fill=\"{}\" d=\"{}\"/>", fill_of(kind, shade_of(i, strips)), outline(kind, box));
  }
  return text;
}

std::string swatch(ActionKind kind, int stages, const Box& box) {
  if (kind == ActionKind::kIdle)
    return fmt::format("<path fill=\"url(#stagecraft-idle)\" d=\"{}\"/>", outline(kind, box));
  if (kind == ActionKind::kOverlap) {
    const double half = (box.height - 1) / 2;
    return shaded_swatch(ActionKind::kForward, 1, {box.x, box.y, box.width, half}) +
           shaded_swatch(ActionKind::kBackward, 1, {box.x, box.y + half + 1, box.width, half});
  }
  if (is_compute(kind)) return shaded_swatch(kind, stages, box);
  const Box low{box.x, box.y + 2, box.width, box.height - 4};
  return fmt::format("<path fill=\"{}\" d=\"{}\"/>", fill_of(kind, 0), outline(kind, low));
}

double swatch_width(ActionKind kind, int stages) {
  return is_compute(kind) && kind != ActionKind::kOverlap ? kSwatch * std::clamp(stages, 1, kMostStrips) : kSwatch;
}

/// The text of the legend after the swatches.
std::string remark(const SvgContents& contents, bool labels) {
  std::string text = labels && contents.compute_label > 0 ? "numbers are microbatches" : "";
  if (contents.most_stages > 1) {
    text += text.empty() ? "" : "; ";
    text += "full to pale colour: first to last stage of a rank";
  }
  return text;
}

}  // namespace

SvgLegend svg_legend(const SvgContents& contents, bool labels, double left, double top, double right) {
  SvgLegend legend{{}, 0, kLine};
  double x = left;
  const auto place = [&](double width) {
    if (x > left && x + width > right) {
      x = left;
      legend.height += kLine;
    }
    const double at = x;
    x += width + 14;
    legend.width = std::max(legend.width, at + width - left);
    return Box{at, top + legend.height - kLine, width, kSwatch};
  };
  const auto put = [&](ActionKind kind) {
    if (!contents.has(kind)) return;
    const std::string_view text = legend_text(kind);
    const double swatch_size = swatch_width(kind, contents.most_stages);
    Box box = place(swatch_size + 5 + text_width(text, kLegendFont));
    box.width = swatch_size;
    legend.text += swatch(kind, contents.most_stages, box);
    legend.text +=
        fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", num(box.x + swatch_size + 5), num(box.y + 11), text);
  };
  for (int kind = 1; kind < kActionKinds; ++kind) put(static_cast<ActionKind>(kind));
  put(ActionKind::kIdle);
  if (const std::string text = remark(contents, labels); !text.empty()) {
    const Box box = place(text_width(text, kLegendFont));
    legend.text +=
        fmt::format("<text fill=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n", kFaintInk, num(box.x), num(box.y + 11), text);
  }
  legend.text = fmt::format("<g font-size=\"{}\">\n{}</g>\n", num(kLegendFont), legend.text);
  return legend;
}

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

#include "svg_legend.h"

#include <fmt/format.h>

#include <algorithm>

#include "svg_style.h"

namespace stagecraft::detail {
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

}  // namespace stagecraft::detail

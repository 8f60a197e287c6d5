#include "stagecraft/view/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

#include "escape.h"
#include "stagecraft/schedule/action_text.h"
#include "svg_head.h"
#include "svg_layout.h"
#include "svg_legend.h"
#include "svg_style.h"

namespace stagecraft {
namespace {

using detail::num;

constexpr double kMargin = detail::kSvgMargin;
constexpr double kLeft = 76;
constexpr double kChart = 1200;
constexpr double kRow = 30;
constexpr double kPitch = 38;
constexpr double kFont = 9;

struct Extent {
  double begin = std::numeric_limits<double>::max();
  double end = std::numeric_limits<double>::lowest();
  [[nodiscard]] double seconds() const { return std::max(0.0, end - begin); }
};

Extent extent_of(const std::vector<Timeline>& ranks) {
  Extent extent;
  for (const Timeline& timeline : ranks) {
    for (const Span& span : timeline) {
      extent.begin = std::min(extent.begin, span.start);
      extent.end = std::max(extent.end, span.end);
    }
  }
  if (extent.end < extent.begin) extent = {0, 0};
  return extent;
}

/// 1, 2 or 5 times a power of ten, about a tenth of the whole.
double tick_distance(double whole) {
  const double power = std::pow(10.0, std::floor(std::log10(std::max(whole, 1e-9) / 10)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (whole / (factor * power) <= 12) return factor * power;
  }
  return 10 * power;
}

/// Stages of a rank in ascending order, to shade them.
std::vector<StageId> stages_in(const Timeline& timeline) {
  std::vector<StageId> stages;
  for (const Span& span : timeline) stages.push_back(span.action.stage());
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return stages;
}

std::string cell(const Span& span, double x, double y, double width, int shade) {
  std::string text =
      fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" fill="{}"><title>{}: {:.3f} ms</title></rect>)", num(x),
                  num(y), num(std::max(width, 0.3)), num(kRow), detail::fill_of(span.action.kind(), shade),
                  to_text(span.action), 1e3 * (span.end - span.start - span.waited));
  const std::string label = detail::label_of(span.action);
  if (detail::text_width(label, kFont) + 2 <= width) {
    text +=
        fmt::format(R"(<text x="{}" y="{}">{}</text>)", num(x + width / 2), num(y + kRow / 2 + 0.36 * kFont), label);
  }
  return text + "\n";
}

}  // namespace

double TimelineSummary::idle() const {
  double total = 0;
  for (const double seconds_busy : busy) total += seconds_busy;
  return seconds > 0 && !busy.empty() ? 1 - total / (seconds * static_cast<double>(busy.size())) : 0;
}

TimelineSummary summarize(const std::vector<Timeline>& ranks) {
  TimelineSummary summary;
  summary.seconds = extent_of(ranks).seconds();
  for (const Timeline& timeline : ranks) {
    double busy = 0;
    for (const Span& span : timeline) {
      if (is_compute(span.action.kind())) busy += span.end - span.start - span.waited;
    }
    summary.busy.push_back(busy);
  }
  return summary;
}

void write_timeline_svg(std::ostream& out, const std::vector<Timeline>& ranks, const std::string& name) {
  const Extent extent = extent_of(ranks);
  const TimelineSummary summary = summarize(ranks);
  const double scale = extent.seconds() > 0 ? kChart / extent.seconds() : 0;
  detail::SvgContents contents;
  contents.ranks = static_cast<int>(ranks.size());
  for (const Timeline& timeline : ranks) {
    contents.most_stages = std::max(contents.most_stages, static_cast<int>(stages_in(timeline).size()));
    for (const Span& span : timeline) {
      const ActionKind kind = span.action.kind();
      if (is_compute(kind)) contents.present[static_cast<std::size_t>(kind)] = true;
    }
  }
  contents.idle = 1;
  const double right = kLeft + kChart;
  const detail::SvgLegend legend = detail::svg_legend(contents, true, kMargin, detail::kSvgLegendTop, right);
  const double top = detail::kSvgLegendTop + legend.height + 6;
  const double bottom = top + kPitch * static_cast<double>(ranks.size());
  out << detail::svg_head(right + kMargin, bottom + 34, name, name,
                          fmt::format("measured: {:.2f} ms on {} ranks, {:.1f}% of their time idle",
                                      1e3 * summary.seconds, ranks.size(), 100 * summary.idle()))
      << legend.text;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double y = top + kPitch * static_cast<double>(r);
    const std::vector<StageId> stages = stages_in(ranks[r]);
    out << fmt::format(R"svg(<text x="{}" y="{}" text-anchor="end">Rank {}</text>
<rect x="{}" y="{}" width="{}" height="{}" fill="url(#stagecraft-idle)"/>
<g text-anchor="middle" font-size="{}">
)svg",
                       num(kLeft - 8), num(y + kRow / 2 + 4), r, num(kLeft), num(y), num(kChart), num(kRow),
                       num(kFont));
    for (const Span& span : ranks[r]) {
      if (!is_compute(span.action.kind())) continue;
      const auto index = std::lower_bound(stages.begin(), stages.end(), span.action.stage()) - stages.begin();
      const double begin = kLeft + scale * (span.start + span.waited - extent.begin);
      out << cell(span, begin, y, kLeft + scale * (span.end - extent.begin) - begin,
                  detail::shade_of(static_cast<int>(index), static_cast<int>(stages.size())));
    }
    out << "</g>\n";
  }
  const double tick = tick_distance(1e3 * extent.seconds());
  out << fmt::format(R"(<g font-size="{}" fill="{}" text-anchor="middle">)", num(kFont), detail::kFaintInk);
  for (double at = 0; at <= 1e3 * extent.seconds(); at += tick) {
    out << fmt::format(R"(<text x="{}" y="{}">{:g} ms</text>)", num(kLeft + scale * at / 1e3), num(bottom + 10), at);
  }
  out << "</g>\n</svg>\n";
}

}  // namespace stagecraft

#include "stagecraft/view/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <ostream>

#include "stagecraft/schedule/action.h"
#include "svg_layout.h"
#include "svg_page.h"

namespace stagecraft {
namespace {

constexpr double kMeasuredRow = 30;
constexpr double kMeasuredPitch = 38;

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

/// Stages of a rank in ascending order, to shade them.
std::vector<StageId> stages_in(const Timeline& timeline) {
  std::vector<StageId> stages;
  for (const Span& span : timeline) stages.push_back(span.action.stage());
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return stages;
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
    const std::vector<OwnTime> times = own_times(timeline);
    double busy = 0;
    for (std::size_t i = 0; i < timeline.size(); ++i) {
      if (is_compute(timeline[i].action.kind())) busy += times[i].worked;
    }
    summary.busy.push_back(busy);
  }
  return summary;
}

void write_timeline_svg(std::ostream& out, const std::vector<Timeline>& ranks, const std::string& name) {
  const Extent extent = extent_of(ranks);
  const TimelineSummary summary = summarize(ranks);
  const double scale = detail::chart_scale(extent.seconds());
  detail::SvgContents contents;
  contents.ranks = static_cast<int>(ranks.size());
  for (const Timeline& timeline : ranks) {
    contents.most_stages = std::max(contents.most_stages, static_cast<int>(stages_in(timeline).size()));
    for (const Span& span : timeline) {
      const ActionKind kind = span.action.kind();
      if (is_compute(kind)) contents.present[static_cast<std::size_t>(kind)] = true;
    }
  }
  const detail::ChartFrame frame =
      detail::chart_frame(contents, kMeasuredPitch, name, name,
                          fmt::format("measured: {:.2f} ms on {} ranks, {:.1f}% of their time idle",
                                      1e3 * summary.seconds, ranks.size(), 100 * summary.idle()));
  out << frame.text;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double y = frame.top + kMeasuredPitch * static_cast<double>(r);
    const std::vector<StageId> stages = stages_in(ranks[r]);
    out << detail::chart_row(r, {detail::kChartLeft, y, detail::kChartWidth, kMeasuredRow});
    for (const Span& span : ranks[r]) {
      if (!is_compute(span.action.kind())) continue;
      const auto index = std::lower_bound(stages.begin(), stages.end(), span.action.stage()) - stages.begin();
      const double begin = span.start + span.waited;
      out << detail::chart_cell(
          span.action, detail::shade_of(static_cast<int>(index), static_cast<int>(stages.size())),
          {detail::kChartLeft + scale * (begin - extent.begin), y, scale * (span.end - begin), kMeasuredRow},
          fmt::format("{}: {:.3f} ms", to_text(span.action), 1e3 * (span.end - begin)));
    }
    out << detail::kChartRowEnd;
  }
  out << detail::chart_axis(frame.bottom, 1e3 * extent.seconds(), " ms") << "</svg>\n";
}

}  // namespace stagecraft

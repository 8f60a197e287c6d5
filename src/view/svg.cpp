#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <string>

#include "escape.h"
#include "stagecraft/core/error.h"
#include "stagecraft/view/render.h"
#include "svg_layout.h"
#include "svg_page.h"
#include "svg_rows.h"
#include "svg_style.h"

namespace stagecraft {
namespace {

using detail::kSvgMargin;
using detail::num;

constexpr double kAxisFont = 9;
constexpr double kAxisHeight = 18;
constexpr double kLegendRight = 1200;  // also for wide pictures, so that the legend needs no scrolling
constexpr std::size_t kLongestTitle = 80;

void refuse_too_many_cells(const detail::SvgContents& contents) {
  const std::int64_t cells = std::int64_t{contents.ranks} * std::max(contents.steps, 1);
  if (cells <= kMaxSvgCells) return;
  throw InvalidArgument(
      fmt::format("{} ranks over {} steps are {} cells, more than the {} an SVG can show: use --format "
                  "csv or --format trace, or draw fewer microbatches",
                  contents.ranks, contents.steps, cells, kMaxSvgCells));
}

std::string counted(std::int64_t count, std::string_view noun, std::string_view plural = {}) {
  if (count == 1) return fmt::format("1 {}", noun);
  return plural.empty() ? fmt::format("{} {}s", count, noun) : fmt::format("{} {}", count, plural);
}

std::string summary(const Schedule& schedule, const detail::SvgContents& contents) {
  std::string text = counted(contents.ranks, "rank") + ", " + counted(schedule.stages(), "stage") + ", " +
                     counted(schedule.microbatches, "microbatch", "microbatches") + ", " +
                     counted(contents.steps, "step");
  const std::int64_t slots = std::int64_t{contents.ranks} * contents.steps;
  if (slots > 0) text += fmt::format(", {:.1f}% of slots idle", 100.0 * double(contents.idle) / double(slots));
  return text;
}

/// Steps between two ticks so that their numbers do not touch: 1, 2, 5, 10, 20, ...
int tick_distance(const detail::SvgContents& contents, double cell_width) {
  const double needed = detail::text_width(std::to_string(contents.steps), kAxisFont) + 8;
  for (int power = 1;; power *= 10) {
    for (const int factor : {1, 2, 5}) {
      if (factor * power * cell_width >= needed) return factor * power;
    }
  }
}

class SvgWriter {
 public:
  SvgWriter(std::ostream& out, const Schedule& schedule, const detail::SvgContents& contents)
      : out_(out),
        schedule_(schedule),
        contents_(contents),
        layout_(detail::layout_of(schedule, contents)),
        title_(detail::shortened(schedule.name.empty() ? "schedule" : schedule.name, kLongestTitle)),
        summary_(summary(schedule, contents)) {
    const double names = layout_.right_names ? layout_.left : kSvgMargin;
    const double chart_right = layout_.left + layout_.chart_width(contents) + names;
    width_ = std::max({chart_right, 560.0, 2 * kSvgMargin + detail::text_width(title_, detail::kSvgTitleFont)});
    legend_ = detail::svg_legend(contents, layout_.labels, kSvgMargin, detail::kSvgLegendTop,
                                 std::min(width_ - kSvgMargin, kLegendRight));
    top_ = detail::kSvgLegendTop + legend_.height + 6 + (layout_.top_axis ? kAxisHeight : 0);
    bottom_ = top_ + contents.ranks * layout_.row_pitch;
  }

  void write() {
    out_ << detail::svg_head(width_, bottom_ + kAxisHeight + kSvgMargin, schedule_.name, title_, summary_);
    out_ << legend_.text;
    if (contents_.ranks == 0 || contents_.steps == 0) {
      out_ << fmt::format("<text x=\"{}\" y=\"{}\">There is nothing to draw.</text>\n", num(kSvgMargin),
                          num(bottom_ + 2));
    } else {
      write_chart();
    }
    out_ << "</svg>\n";
  }

 private:
  void write_chart() {
    write_names(layout_.left - 8, "end");
    if (layout_.right_names) write_names(layout_.left + layout_.chart_width(contents_) + 8, "start");
    if (layout_.top_axis) write_axis(top_ - 4, -1);
    write_axis(bottom_, 1);
    out_ << "<g text-anchor=\"middle\">\n";
    detail::SvgRows rows(schedule_, contents_, layout_);
    for (int rank = 0; rank < contents_.ranks; ++rank) out_ << rows.draw(rank, top_ + rank * layout_.row_pitch);
    out_ << "</g>\n";
  }

  void write_names(double x, std::string_view anchor) {
    out_ << fmt::format("<g font-size=\"{}\" text-anchor=\"{}\">\n", num(layout_.rank_font), anchor);
    for (int rank = 0; rank < contents_.ranks; ++rank) {
      const double middle = top_ + rank * layout_.row_pitch + layout_.cell_height / 2;
      const std::string stages = layout_.stage_lists ? detail::stage_list(schedule_.placement, RankId(rank)) : "";
      const double baseline = middle + (stages.empty() ? 0.36 * layout_.rank_font : -1);
      out_ << fmt::format("<text x=\"{}\" y=\"{}\">Rank {}</text>", num(x), num(baseline), rank);
      if (!stages.empty()) {
        out_ << fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"8.5\" fill=\"{}\">{}</text>", num(x), num(middle + 9),
                            detail::kFaintInk, stages);
      }
      out_ << '\n';
    }
    out_ << "</g>\n";
  }

  /// Ticks point away from the rows: `direction` is 1 below the rows, -1 above.
  void write_axis(double y, int direction) {
    const int distance = tick_distance(contents_, layout_.cell_width);
    std::string ticks;
    std::string numbers;
    for (int step = 0; step < contents_.steps; step += distance) {
      const std::string x = num(layout_.left + (step + 0.5) * layout_.cell_width - layout_.gap / 2);
      ticks += fmt::format("M{} {}v{}", x, num(y), 3 * direction);
      numbers += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>", x, num(y + (direction > 0 ? 13 : -5)), step);
    }
    out_ << fmt::format(
        "<path stroke=\"{0}\" d=\"{1}\"/>\n<g font-size=\"{2}\" fill=\"{0}\" text-anchor=\"middle\">"
        "<text x=\"{3}\" y=\"{4}\" text-anchor=\"end\">step</text>{5}</g>\n",
        detail::kFaintInk, ticks, num(kAxisFont), num(layout_.left - 8), num(y + (direction > 0 ? 13 : -5)), numbers);
  }

  std::ostream& out_;
  const Schedule& schedule_;
  const detail::SvgContents& contents_;
  detail::SvgLayout layout_;
  std::string title_;
  std::string summary_;
  detail::SvgLegend legend_;
  double width_ = 0;
  double top_ = 0;
  double bottom_ = 0;
};

}  // namespace

void write_svg(std::ostream& out, const Schedule& schedule) {
  const detail::SvgContents contents = detail::contents_of(schedule);
  refuse_too_many_cells(contents);
  SvgWriter(out, schedule, contents).write();
}

}  // namespace stagecraft

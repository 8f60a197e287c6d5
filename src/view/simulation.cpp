#include "stagecraft/view/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "escape.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action_text.h"
#include "stagecraft/view/render.h"
#include "svg_head.h"
#include "svg_layout.h"
#include "svg_legend.h"
#include "svg_style.h"

namespace stagecraft {
namespace {

using detail::num;

constexpr double kLeft = 76;
constexpr double kChart = 1200;
constexpr double kRow = 26;
constexpr double kCurve = 22;
constexpr double kPitch = kRow + kCurve + 10;
constexpr double kFont = 9;

void require_kept(const Schedule& schedule, const Simulation& simulation) {
  if (simulation.times.size() == schedule.rows.size() && simulation.memory.size() == schedule.rows.size()) return;
  throw InvalidArgument(
      "a picture of a simulation needs its times and memory: simulate with keep_times and keep_memory");
}

class Chart {
 public:
  Chart(std::ostream& out, const Schedule& schedule, const Simulation& simulation)
      : out_(out),
        schedule_(schedule),
        simulation_(simulation),
        scale_(simulation.makespan > 0 ? kChart / simulation.makespan : 0),
        peak_(simulation.peak_memory()) {}

  void write() {
    detail::SvgContents contents = detail::contents_of(schedule_);
    for (int kind = static_cast<int>(ActionKind::kUnshard); kind < kActionKinds; ++kind) {
      contents.present[static_cast<std::size_t>(kind)] = false;
    }
    contents.idle = 1;
    const double right = kLeft + kChart;
    const auto legend = detail::svg_legend(contents, true, detail::kSvgMargin, detail::kSvgLegendTop, right);
    const double top = detail::kSvgLegendTop + legend.height + 6;
    const double bottom = top + kPitch * schedule_.ranks();
    const std::string name = schedule_.name.empty() ? "schedule" : schedule_.name;
    out_ << detail::svg_head(right + detail::kSvgMargin, bottom + 34, name, detail::shortened(name, 80),
                             fmt::format("simulated: makespan {:.6g}, bubble {:.2f}% of the span, {:.2f}% of the "
                                         "makespan; peak memory {:.6g}",
                                         simulation_.makespan, 100 * simulation_.bubble_span(),
                                         100 * simulation_.bubble_makespan(), peak_))
         << legend.text;
    for (int rank = 0; rank < schedule_.ranks(); ++rank)
      write_rank(static_cast<std::size_t>(rank), top + kPitch * rank);
    write_axis(bottom);
    out_ << "</svg>\n";
  }

 private:
  void write_rank(std::size_t rank, double y) {
    const double end = scale_ * simulation_.ranks[rank].end;
    out_ << fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">Rank {}</text>\n"
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"url(#stagecraft-idle)\"/>\n"
        "<g text-anchor=\"middle\" font-size=\"{}\">\n",
        num(kLeft - 8), num(y + kRow / 2 + 4), rank, num(kLeft), num(y), num(end), num(kRow), num(kFont));
    const Row& row = schedule_.rows[rank];
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!is_compute(row[i].kind())) continue;
      const ActionTime time = simulation_.times[rank][i];
      if (!row[i].is_overlap()) {
        write_cell(row[i], time, y, kRow);
      } else {
        write_cell(row[i].first(), time, y, kRow / 2);
        write_cell(row[i].second(), time, y + kRow / 2, kRow / 2);
      }
    }
    out_ << "</g>\n";
    write_memory(rank, y + kRow + 2);
  }

  void write_cell(const Action& part, const ActionTime& time, double y, double height) {
    const double x = kLeft + scale_ * time.start;
    const double width = scale_ * (time.end - time.start);
    out_ << fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{}: {:.6g} to {:.6g}</title></rect>",
        num(x), num(y), num(std::max(width, 0.3)), num(height),
        detail::fill_of(part.kind(), detail::shade_of(schedule_.placement, part.stage())), to_text(part), time.start,
        time.end);
    const std::string label = detail::label_of(part);
    if (detail::text_width(label, kFont) + 2 <= width && kFont <= height) {
      out_ << fmt::format("<text x=\"{}\" y=\"{}\">{}</text>", num(x + width / 2), num(y + height / 2 + 0.36 * kFont),
                          label);
    }
    out_ << '\n';
  }

  void write_memory(std::size_t rank, double y) {
    const double unit = peak_ > 0 ? kCurve / peak_ : 0;
    std::string path = fmt::format("M{} {}", num(kLeft), num(y + kCurve));
    for (const MemoryPoint& point : simulation_.memory[rank]) {
      path += fmt::format("H{}V{}", num(kLeft + scale_ * point.time), num(y + kCurve - unit * point.memory));
    }
    out_ << fmt::format(
        "<path class=\"memory\" fill=\"#c9d6e4\" stroke=\"#6d8196\" stroke-width=\"0.7\" d=\"{0}V{1}z\"><title>rank "
        "{2}: peak "
        "memory {3:.6g}</title></path><path stroke=\"{4}\" stroke-width=\"0.5\" stroke-dasharray=\"3 3\" d=\"M{5} "
        "{6}h{7}\"/>\n",
        path, num(y + kCurve), rank, simulation_.ranks[rank].peak_memory, detail::kFaintInk, num(kLeft), num(y),
        num(kChart));
  }

  void write_axis(double bottom) {
    const double power = std::pow(10.0, std::floor(std::log10(std::max(simulation_.makespan, 1e-9) / 5)));
    const double rough = simulation_.makespan / power;
    const double tick = power * (rough > 25 ? 5 : rough > 12 ? 2 : 1);
    out_ << fmt::format("<g font-size=\"{}\" fill=\"{}\" text-anchor=\"middle\">", num(kFont), detail::kFaintInk);
    for (int i = 0; i * tick <= simulation_.makespan; ++i) {
      out_ << fmt::format("<text x=\"{}\" y=\"{}\">{:g}</text>", num(kLeft + scale_ * i * tick), num(bottom + 8),
                          i * tick);
    }
    out_ << "</g>\n";
  }

  std::ostream& out_;
  const Schedule& schedule_;
  const Simulation& simulation_;
  double scale_;
  double peak_;
};

}  // namespace

void write_simulation_svg(std::ostream& out, const Schedule& schedule, const Simulation& simulation) {
  require_kept(schedule, simulation);
  if (schedule.actions() > kMaxSvgCells) {
    throw InvalidArgument(
        fmt::format("{} actions are more than the {} an SVG can show: use --format trace, or fewer "
                    "microbatches",
                    schedule.actions(), kMaxSvgCells));
  }
  Chart(out, schedule, simulation).write();
}

void write_simulation_trace(std::ostream& out, const Schedule& schedule, const Simulation& simulation) {
  require_kept(schedule, simulation);
  out << fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"schedule\":\"{}\"}},\n\"traceEvents\":[",
                     detail::json_escaped(schedule.name));
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    out << (r > 0 ? ",\n" : "\n")
        << fmt::format(R"({{"ph":"M","name":"process_name","pid":{0},"args":{{"name":"Rank {0}"}}}})", r);
    for (std::size_t i = 0; i < schedule.rows[r].size(); ++i) {
      if (!is_compute(schedule.rows[r][i].kind())) continue;
      const ActionTime time = simulation.times[r][i];
      out << fmt::format(",\n{{\"ph\":\"X\",\"name\":\"{}\",\"pid\":{},\"tid\":1,\"ts\":{:.6g},\"dur\":{:.6g}}}",
                         to_text(schedule.rows[r][i]), r, time.start, time.end - time.start);
    }
    for (const MemoryPoint& point : simulation.memory[r]) {
      out << fmt::format(
          ",\n{{\"ph\":\"C\",\"name\":\"memory\",\"pid\":{},\"ts\":{:.6g},\"args\":{{\"held\":{:.6g}}}}}", r,
          point.time, point.memory);
    }
  }
  out << "\n]}\n";
}

}  // namespace stagecraft

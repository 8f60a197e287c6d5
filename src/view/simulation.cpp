// Pictures of a simulation: the times of its actions, and each rank's memory below them.

#include <fmt/format.h>

#include <ostream>

#include "escape.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/view/render.h"
#include "svg_layout.h"
#include "svg_page.h"
#include "svg_style.h"

namespace stagecraft {
namespace {

using detail::kChartLeft;
using detail::num;

constexpr double kRow = 26;
constexpr double kCurve = 22;
constexpr double kPitch = kRow + kCurve + 10;

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
        scale_(detail::chart_scale(simulation.makespan)),
        peak_(simulation.peak_memory()) {}

  void write() {
    detail::SvgContents contents = detail::contents_of(schedule_);
    for (int kind = static_cast<int>(ActionKind::kUnshard); kind < kActionKinds; ++kind) {
      contents.present[static_cast<std::size_t>(kind)] = false;
    }
    const std::string name = schedule_.name.empty() ? "schedule" : schedule_.name;
    const detail::ChartFrame frame = detail::chart_frame(
        contents, kPitch, name, detail::shortened(name, 80),
        fmt::format(
            "simulated: makespan {:.6g}, bubble {:.2f}% of the span, {:.2f}% of the makespan; peak memory {:.6g}",
            simulation_.makespan, 100 * simulation_.bubble_span(), 100 * simulation_.bubble_makespan(), peak_));
    out_ << frame.text;
    for (int rank = 0; rank < schedule_.ranks(); ++rank)
      write_rank(static_cast<std::size_t>(rank), frame.top + kPitch * rank);
    out_ << detail::chart_axis(frame.bottom, simulation_.makespan, "") << "</svg>\n";
  }

 private:
  void write_rank(std::size_t rank, double y) {
    out_ << detail::chart_row(rank, {kChartLeft, y, scale_ * simulation_.ranks[rank].end, kRow});
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
    out_ << detail::kChartRowEnd;
    write_memory(rank, y + kRow + 2);
  }

  void write_cell(const Action& part, const ActionTime& time, double y, double height) {
    const detail::Box box = {kChartLeft + scale_ * time.start, y, scale_ * (time.end - time.start), height};
    out_ << detail::chart_cell(part, detail::shade_of(schedule_.placement, part.stage()), box,
                               fmt::format("{}: {:.6g} to {:.6g}", to_text(part), time.start, time.end));
  }

  void write_memory(std::size_t rank, double y) {
    const double unit = peak_ > 0 ? kCurve / peak_ : 0;
    std::string path = fmt::format("M{} {}", num(kChartLeft), num(y + kCurve));
    for (const MemoryPoint& point : simulation_.memory[rank]) {
      path += fmt::format("H{}V{}", num(kChartLeft + scale_ * point.time), num(y + kCurve - unit * point.memory));
    }
    out_ << fmt::format(
        "<path class=\"memory\" fill=\"#c9d6e4\" stroke=\"#6d8196\" stroke-width=\"0.7\" d=\"{0}V{1}z\"><title>rank "
        "{2}: peak "
        "memory {3:.6g}</title></path><path stroke=\"{4}\" stroke-width=\"0.5\" stroke-dasharray=\"3 3\" d=\"M{5} "
        "{6}h{7}\"/>\n",
        path, num(y + kCurve), rank, simulation_.ranks[rank].peak_memory, detail::kFaintInk, num(kChartLeft), num(y),
        num(detail::kChartWidth));
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

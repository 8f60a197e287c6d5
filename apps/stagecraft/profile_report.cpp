#include "profile_report.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "report_text.h"

namespace stagecraft::cli {
namespace {

constexpr double kMilliseconds = 1e3;

void write_stages(std::ostream& out, const Profile& profile) {
  fmt::print(out, "\n{:>5}  {:>4}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>11}  {:>11}\n", "STAGE", "RANK", "F ms",
             "B ms", "I ms", "W ms", "PAUSE ms", "BYTES AFTER", "BYTES BACK");
  bool any_assumed = false;
  for (std::size_t s = 0; s < profile.costs.stages.size(); ++s) {
    const StageCosts& stage = profile.costs.stages[s];
    const auto& assumed = profile.assumed_splits;
    const bool is_assumed = std::find(assumed.begin(), assumed.end(), StageId(s)) != assumed.end();
    any_assumed |= is_assumed;
    const char* mark = is_assumed ? "*" : " ";
    fmt::print(out, "{:>5}  {:>4}  {:>9.4f}  {:>9.4f}  {:>8.4f}{}  {:>8.4f}{}  {:>9.4f}  {:>11.0f}  {:>11.0f}\n", s,
               profile.placement.rank_of(StageId(s)).value, kMilliseconds * stage.forward,
               kMilliseconds * stage.backward, kMilliseconds * stage.backward_input, mark,
               kMilliseconds * stage.backward_weight, mark, kMilliseconds * stage.optimizer, stage.forward_bytes,
               stage.backward_bytes);
  }
  if (any_assumed) {
    fmt::print(out, "* no I and W were recorded: divided by rule; add a run of a schedule that splits backwards\n");
  }
}

std::pair<double, double> range_of_paces(const Profile& profile) {
  double fastest = 1;
  double slowest = 1;
  for (const std::vector<double>& step : profile.paces) {
    const auto [least, most] = std::minmax_element(step.begin(), step.end());
    fastest = std::min(fastest, *least);
    slowest = std::max(slowest, *most);
  }
  return {fastest, slowest};
}

}  // namespace

void write_profile_report(std::ostream& out, const Profile& profile) {
  write_line(out, "ranks", std::to_string(profile.placement.ranks()));
  write_line(out, "stages", fmt::format("{}, placement {}", profile.placement.stages(), profile.placement.style()));
  write_line(out, "jitter", fmt::format("{:.4f}, for simulate --jitter", profile.jitter));
  const auto [fastest, slowest] = range_of_paces(profile);
  write_line(out, "pace", fmt::format("{:.3f} to {:.3f} of a rank's typical step", fastest, slowest));
  write_stages(out, profile);
  if (!profile.costs.links.empty())
    fmt::print(out, "\n{:>5}  {:>4}  {:>10}  {:>10}\n", "FROM", "TO", "LATENCY ms", "MB/s");
  for (const NamedLink& link : profile.costs.links) {
    fmt::print(out, "{:>5}  {:>4}  {:>10.4f}  {:>10}\n", link.from.value, link.to.value,
               kMilliseconds * link.costs.latency,
               link.costs.bandwidth > 0 ? fmt::format("{:.1f}", link.costs.bandwidth / 1e6) : "-");
  }
  fmt::print(out, "\n{:<22}  {:>5}  {:>12}  {:>12}  {:>7}\n", "RUN", "STEPS", "MEASURED ms", "SIMULATED ms", "RATIO");
  for (const ProfiledRun& run : profile.runs) {
    const double simulated = predicted_period(profile, run.schedule);
    fmt::print(out, "{:<22}  {:>5}  {:>12.4f}  {:>12.4f}  {:>7.3f}\n", printable(run.name), run.steps,
               kMilliseconds * run.measured_period, kMilliseconds * simulated,
               run.measured_period > 0 ? simulated / run.measured_period : 1);
  }
}

}  // namespace stagecraft::cli

#include "autopilot.h"

#include <cmath>
#include <exception>
#include <sstream>

#include "auto_plan.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/runtime/timeline_message.h"
#include "stagecraft/schedule/csv.h"

namespace stagecraft {
namespace {

void check(const AutoOptions& options, Timeout timeout) {
  const auto refuse = [](const std::string& key, double value, const std::string& rule) {
    std::ostringstream text;
    text << "automatic." << key << " is " << value << ": " << rule;
    throw InvalidArgument(text.str());
  };
  if (options.profile_steps < 1) refuse("profile_steps", options.profile_steps, "give at least 1");
  if (!(options.time_budget > 0)) refuse("time_budget", options.time_budget, "give some seconds, above 0");
  if (options.time_budget >= std::chrono::duration<double>(timeout).count()) {
    refuse("time_budget", options.time_budget,
           "the other ranks wait no longer than the world's timeout, " +
               std::to_string(std::chrono::duration_cast<std::chrono::seconds>(timeout).count()) +
               " s: give less, or a longer timeout");
  }
  if (!(options.memory_limit >= 0)) {
    refuse("memory_limit", options.memory_limit, "give the most activations of a rank, or 0 for those it starts with");
  }
}

/// The same with an I and its W instead of each B.
Schedule with_split_backwards(const Schedule& schedule) {
  Schedule split{schedule.name + ", split", schedule.placement, schedule.microbatches, {}};
  for (const Row& row : schedule.rows) {
    Row& parts = split.rows.emplace_back();
    for (const Action& action : row) {
      if (action.kind() != ActionKind::kBackward) {
        parts.push_back(action);
        continue;
      }
      parts.push_back(Action::backward_input(action.stage(), action.microbatch()));
      parts.push_back(Action::backward_weight(action.stage(), action.microbatch()));
    }
  }
  return split;
}

}  // namespace

Autopilot::Autopilot(World& world, const AutoOptions& options, Schedule starting, std::string passes, int warm_ups)
    : world_(world), options_(options), passes_(std::move(passes)), warm_ups_(warm_ups) {
  check(options, world.timeout());
  report_.starting = starting.name;
  report_.planned = starting.name;
  report_.memory_limit = auto_memory_limit(options, starting);
  schedules_[kSplit] = with_split_backwards(starting);
  schedules_[kWhole] = std::move(starting);
}

Autopilot::Variant Autopilot::variant() const {
  const bool is_even = turns_ % 2 == 0;
  switch (report_.phase) {
    case AutoReport::Phase::kProfiling:
      return is_even ? kWhole : kSplit;
    case AutoReport::Phase::kComparing:
      return is_even ? kPlanned : kWhole;
    default:
      return report_.switched ? kPlanned : kWhole;
  }
}

void Autopilot::after_step(const Timeline& timeline, double seconds) {
  if (is_decided()) return;
  const Variant present = variant();
  const bool is_warm = turns_ >= 2 * warm_ups_;  // of each kind
  ++turns_;
  if (is_warm && records()) timelines_[present].push_back(timeline);
  if (is_warm && !records()) seconds_[present].push_back(seconds);
  if (!is_over(turns_)) return;
  turns_ = 0;
  records() ? plan_together() : decide_together();
}

/// The recordings of all replicas, on rank 0 of the world; without steps elsewhere.
std::vector<Recording> Autopilot::gather_recordings() {
  const auto replicas = static_cast<std::size_t>(world_.replicas());
  std::vector<Recording> recordings;
  for (const Variant variant : {kWhole, kSplit}) {
    const std::size_t first = recordings.size();
    for (std::size_t r = 0; r < replicas; ++r) recordings.push_back({schedules_[variant].name, {}});
    for (const Timeline& own : timelines_[variant]) {
      const auto during = world_.everyone().during("the timelines of automatic planning");
      const std::vector<Message> all = world_.everyone().collect(to_message(own), 0);
      for (std::size_t r = 0; r < replicas && !all.empty(); ++r) {
        StepTimelines& step = recordings[first + r].steps.emplace_back();
        for (std::size_t rank = r; rank < all.size(); rank += replicas) step.push_back(to_timeline(all[rank]));
      }
    }
    timelines_[variant].clear();
  }
  return recordings;
}

void Autopilot::plan_together() {
  report_.phase = AutoReport::Phase::kDecided;  // in case this fails
  const std::vector<Recording> recordings = gather_recordings();
  std::exception_ptr own;
  Message message;  // the plan, or why there is none
  constexpr char kFailed = '!';
  if (world_.world_rank().value == 0) {
    try {
      message.header = to_text(find_plan(recordings, schedules_[kWhole], report_.memory_limit, options_, passes_));
    } catch (const std::exception& error) {
      own = std::current_exception();
      message.header = kFailed + std::string(error.what());
    }
  }
  const auto during = world_.everyone().during("the planned schedule");
  message = world_.everyone().broadcast(std::move(message), 0);
  if (own) std::rethrow_exception(own);
  if (message.header.starts_with(kFailed)) {
    throw AbortedError("rank 0: while planning a schedule: " + message.header.substr(1), RankId(0));
  }
  const AutoPlan plan = to_auto_plan(message.header);
  report_.planned = plan.name;
  report_.costs = plan.costs;
  report_.predicted_before = plan.predicted_before;
  report_.predicted_after = plan.predicted_after;
  if (plan.csv.empty()) return;
  schedules_[kPlanned] = Schedule::from_rows(parse_csv(plan.csv), plan.name);
  report_.phase = AutoReport::Phase::kComparing;
}

void Autopilot::decide_together() {
  std::ostringstream own;
  own.precision(17);
  own << median(seconds_[kWhole]) << ' ' << median(seconds_[kPlanned]);
  double before = 0;
  double after = 0;
  const auto during = world_.everyone().during("the step times of automatic planning");
  const std::vector<std::string> all = world_.everyone().all_gather(own.str());
  for (const std::string& text : all) {
    std::istringstream in(text);
    double of_rank = 0;
    in >> of_rank;
    before += of_rank / static_cast<double>(all.size());
    in >> of_rank;
    after += of_rank / static_cast<double>(all.size());
  }
  report_.measured_before = before;
  report_.measured_after = after;
  report_.switched = after < before;
  report_.phase = AutoReport::Phase::kDecided;
}

const AutoReport& auto_report(const Pipeline& pipeline) {
  const auto* autopilot = dynamic_cast<const Autopilot*>(pipeline.steering());
  if (autopilot != nullptr) return autopilot->report();
  throw InvalidArgument("this pipeline runs the schedule it was given: there is a report only with schedule \"auto\"");
}

bool detail::register_autopilot() {
  register_steering(
      [](World& world, const AutoOptions& options, const Schedule& starting, const std::string& passes, int warm_ups) {
        return std::make_unique<Autopilot>(world, options, starting, passes, warm_ups);
      });
  return true;
}

std::string AutoReport::text() const {
  std::ostringstream out;
  out.precision(3);
  const auto milliseconds = [&](double before, double after) {
    out << 1e3 * before << " ms -> " << 1e3 * after << " ms, gain " << 100 * (1 - after / before) << "%";
  };
  if (phase == Phase::kProfiling) {
    out << "auto: profiling " << starting;
    return out.str();
  }
  if (phase == Phase::kDecided && measured_after == 0) {
    out << "auto: stays with " << starting;
    if (predicted_before > 0) out << ": nothing is predicted to be faster than its " << 1e3 * predicted_before << " ms";
    return out.str();
  }
  out << "auto: "
      << (phase == Phase::kComparing ? "compares "
          : switched                 ? "switched from "
                                     : "stays with ")
      << starting
      << (phase == Phase::kComparing ? " with "
          : switched                 ? " to "
                                     : " instead of ")
      << planned << ": predicted ";
  milliseconds(predicted_before, predicted_after);
  if (measured_after > 0) {
    out << "; measured ";
    milliseconds(measured_before, measured_after);
  }
  return out.str();
}

}  // namespace stagecraft

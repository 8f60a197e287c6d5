#pragma once

#include <array>
#include <string>
#include <vector>

#include "stagecraft/runtime/auto_schedule.h"
#include "stagecraft/runtime/world.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/timeline.h"

namespace stagecraft {

/// Says which schedule the next step runs, from what the steps before took:
///
///   profiling   whole, split, whole, split, ...      recorded; then rank 0 plans, and all get its plan
///   comparing   planned, whole, planned, whole, ...  measured; then all keep the faster one
///   decided
///
/// Every rank of the world has one, and they do the same: all take part in every `after_step`.
class Autopilot {
 public:
  enum Variant : std::uint8_t { kWhole, kSplit, kPlanned };
  static constexpr std::size_t kVariants = 3;

  /// `starting` is compute-only; plans are judged as `passes` lower them. Throws InvalidArgument for options that
  /// cannot be.
  Autopilot(World& world, const AutoOptions& options, Schedule starting, std::string passes);

  [[nodiscard]] Variant next() const;
  /// Compute-only.
  [[nodiscard]] const Schedule& schedule(Variant variant) const { return schedules_[variant]; }
  [[nodiscard]] bool is_decided() const { return report_.phase == AutoReport::Phase::kDecided; }
  /// Whether the next step is to be recorded.
  [[nodiscard]] bool records() const { return report_.phase == AutoReport::Phase::kProfiling; }
  [[nodiscard]] const AutoReport& report() const { return report_; }

  /// After a training step that all ranks have ended well: what it recorded here, and how long it took here. May plan,
  /// which takes a while. When that goes wrong, all ranks throw, and keep the schedule they started with.
  void after_step(const Timeline& timeline, double seconds);

 private:
  [[nodiscard]] bool is_over(int turns) const { return turns >= 2 * (options_.profile_steps + 1); }
  void plan_together();
  void decide_together();
  [[nodiscard]] std::vector<Recording> gather_recordings();

  World& world_;
  AutoOptions options_;
  std::string passes_;
  std::array<Schedule, kVariants> schedules_;
  AutoReport report_;
  int turns_ = 0;                                   // of the phase
  std::array<StepTimelines, kVariants> timelines_;  // of this rank, by step
  std::array<std::vector<double>, kVariants> seconds_;
};

}  // namespace stagecraft

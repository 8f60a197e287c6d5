#pragma once

#include <array>
#include <string>
#include <vector>

#include "stagecraft/automatic/automatic.h"
#include "stagecraft/runtime/steering.h"

namespace stagecraft {

/// Chooses the schedules of "auto":
///
///   profiling   whole, split, whole, split, ...      recorded; then rank 0 plans, and all get its plan
///   comparing   planned, whole, planned, whole, ...  measured; then all keep the faster one
///   decided
class Autopilot : public Steering {
 public:
  enum Variant : std::uint8_t { kWhole, kSplit, kPlanned };
  static constexpr std::size_t kVariants = 3;

  /// `starting` is compute-only; plans are compared after `passes` have lowered them. Throws InvalidArgument for
  /// options out of range.
  Autopilot(World& world, const AutoOptions& options, Schedule starting, std::string passes, int warm_ups);

  [[nodiscard]] std::size_t next() const override { return variant(); }
  [[nodiscard]] const Schedule& schedule(std::size_t number) const override { return schedules_.at(number); }
  [[nodiscard]] bool is_decided() const override { return report_.phase == AutoReport::Phase::kDecided; }
  [[nodiscard]] bool records() const override { return report_.phase == AutoReport::Phase::kProfiling; }
  /// May plan, which takes up to AutoOptions::time_budget. If planning fails, all ranks keep the starting schedule.
  void after_step(const Timeline& timeline, double seconds) override;
  [[nodiscard]] const AutoReport& report() const { return report_; }

 private:
  [[nodiscard]] Variant variant() const;
  [[nodiscard]] bool is_over(int turns) const { return turns >= 2 * (options_.profile_steps + warm_ups_); }
  void plan_together();
  void decide_together();
  [[nodiscard]] std::vector<Recording> gather_recordings();

  World& world_;
  AutoOptions options_;
  std::string passes_;
  int warm_ups_;
  std::array<Schedule, kVariants> schedules_;
  AutoReport report_;
  int turns_ = 0;                                   // steps in this phase
  std::array<StepTimelines, kVariants> timelines_;  // of this rank, by step
  std::array<std::vector<double>, kVariants> seconds_;
};

}  // namespace stagecraft

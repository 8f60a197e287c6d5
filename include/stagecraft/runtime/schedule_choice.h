#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "stagecraft/schedule/placement.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// A schedule by name ("1F1B"), by the path of a CSV file, or itself; or "auto".
class ScheduleChoice {
 public:
  ScheduleChoice(const char* name) : name_(name) {}             // NOLINT(google-explicit-constructor)
  ScheduleChoice(std::string name) : name_(std::move(name)) {}  // NOLINT(google-explicit-constructor)
  ScheduleChoice(Schedule own)                                  // NOLINT(google-explicit-constructor)
      : name_(own.name), own_(std::make_shared<const Schedule>(std::move(own))) {}

  /// As it was given, or that of the schedule.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool is_auto() const;
  /// The schedule of your own, or of the file; none by name. Throws FileError or ScheduleError.
  [[nodiscard]] std::optional<Schedule> given() const;
  /// Where it puts its stages. `stages_per_rank` 0: as many as it usually has; only by name.
  [[nodiscard]] Placement placement(int ranks, int stages_per_rank) const;

 private:
  std::string name_;
  std::shared_ptr<const Schedule> own_;
};

}  // namespace stagecraft

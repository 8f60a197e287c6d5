#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "stagecraft/schedule/placement.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// A schedule, given by name ("1F1B"), by the path of a CSV file or as an object; or "auto".
class ScheduleChoice {
 public:
  ScheduleChoice(const char* name) : name_(name) {}             // NOLINT(google-explicit-constructor)
  ScheduleChoice(std::string name) : name_(std::move(name)) {}  // NOLINT(google-explicit-constructor)
  ScheduleChoice(Schedule own)                                  // NOLINT(google-explicit-constructor)
      : name_(own.name), own_(std::make_shared<const Schedule>(std::move(own))) {}

  /// The name or path as given, or the name of the schedule object.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool is_auto() const;
  /// The schedule, if given as an object or a file; none if given by name. Throws FileError or ScheduleError.
  [[nodiscard]] std::optional<Schedule> given() const;
  /// The placement of the schedule's stages. `stages_per_rank` is used for a schedule given by name; 0: its usual
  /// number.
  [[nodiscard]] Placement placement(int ranks, int stages_per_rank) const;

 private:
  std::string name_;
  std::shared_ptr<const Schedule> own_;
};

}  // namespace stagecraft

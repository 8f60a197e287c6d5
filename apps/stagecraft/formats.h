#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace CLI {
class App;
}

namespace stagecraft::cli {

/// The format a command writes: the one asked for, else the one the output's extension stands for if it is among
/// `known`, else `fallback`.
std::string choose_format(const std::string& asked, const std::string& output, const std::vector<std::string>& known,
                          const std::string& fallback);

/// -o, --format and --colour of the commands that write a schedule.
class ScheduleOutput {
 public:
  /// `fallback` is the format when neither an option nor the name of the output says one.
  ScheduleOutput(CLI::App& parser, std::string fallback);

  /// Pictures (table, svg, trace) show the ranks on a common clock; data (csv, json) is the schedule as it stands.
  void write(const Schedule& schedule) const;
  /// The slots exactly as they stand, in every format.
  void write_slots(const Schedule& schedule) const;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string format() const;

 private:
  void write_as(std::ostream& out, const Schedule& schedule, const std::string& format) const;

  std::string path_ = "-";
  std::string asked_;
  std::string colour_ = "auto";
  std::string fallback_;
};

}  // namespace stagecraft::cli

#pragma once

#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace CLI {
class App;
}

namespace stagecraft::cli {

/// -o and --format of a command: where it writes, and what.
class FormattedOutput {
 public:
  /// Without an option the output's extension says the format if it stands for one of these, else it is `fallback`.
  explicit FormattedOutput(std::vector<std::string> formats, std::string fallback = "table")
      : formats_(std::move(formats)), fallback_(std::move(fallback)) {}

  /// What the formats are comes before the default in the help.
  void add_options(CLI::App& parser, const std::string& help = "What to write");

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string format() const;

 private:
  std::vector<std::string> formats_;
  std::string fallback_;
  std::string path_ = "-";
  std::string asked_;
};

/// -o, --format and --colour of the commands that write a schedule.
class ScheduleOutput {
 public:
  /// `fallback` is the format when neither an option nor the name of the output says one.
  ScheduleOutput(CLI::App& parser, std::string fallback);

  /// Pictures (table, svg, trace) show the ranks on a common clock; data (csv, json) is the schedule as it stands.
  void write(const Schedule& schedule) const;
  /// The slots exactly as they stand, in every format.
  void write_slots(const Schedule& schedule) const;

  [[nodiscard]] const std::string& path() const { return output_.path(); }
  [[nodiscard]] std::string format() const { return output_.format(); }

 private:
  void write_as(std::ostream& out, const Schedule& schedule, const std::string& format) const;

  FormattedOutput output_;
  std::string colour_ = "auto";
};

}  // namespace stagecraft::cli

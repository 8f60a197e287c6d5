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

/// The options -o and --format of a command.
class FormattedOutput {
 public:
  /// Without --format, the format is that of the output's extension if it is one of `formats`, else `fallback`.
  explicit FormattedOutput(std::vector<std::string> formats, std::string fallback = "table")
      : formats_(std::move(formats)), fallback_(std::move(fallback)) {}

  /// `help` describes the formats; the default is appended to it.
  void add_options(CLI::App& parser, const std::string& help = "What to write");

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string format() const;

 private:
  std::vector<std::string> formats_;
  std::string fallback_;
  std::string path_ = "-";
  std::string asked_;
};

/// The options -o, --format and --colour of commands that write a schedule.
class ScheduleOutput {
 public:
  /// `fallback` is the format when neither --format nor the output's extension gives one.
  ScheduleOutput(CLI::App& parser, std::string fallback);

  /// Pictures (table, svg, trace) show the ranks on a common clock; data (csv, json) has the slots unchanged.
  void write(const Schedule& schedule) const;
  /// Writes the slots unchanged in every format.
  void write_slots(const Schedule& schedule) const;

  [[nodiscard]] const std::string& path() const { return output_.path(); }
  [[nodiscard]] std::string format() const { return output_.format(); }

 private:
  void write_as(std::ostream& out, const Schedule& schedule, const std::string& format) const;

  FormattedOutput output_;
  std::string colour_ = "auto";
};

}  // namespace stagecraft::cli

#include "formats.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "options.h"
#include "output.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/view/render.h"

namespace stagecraft::cli {
namespace {

bool is_picture(const std::string& format) { return format == "table" || format == "svg" || format == "trace"; }

bool environment_allows_colour() {
  const char* no_colour = std::getenv("NO_COLOR");  // https://no-color.org: any non-empty value disables colour
  const char* terminal = std::getenv("TERM");
  return (no_colour == nullptr || *no_colour == '\0') && (terminal == nullptr || std::string_view(terminal) != "dumb");
}

int terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

TableOptions table_options(const std::string& path, const std::string& colour) {
  const bool terminal = is_terminal(path);
  TableOptions options;
  options.colour = colour == "always" || (colour == "auto" && terminal && environment_allows_colour());
  options.width = terminal ? terminal_width() : 0;
  return options;
}

}  // namespace

void FormattedOutput::add_options(CLI::App& parser, const std::string& help) {
  add_output(parser, path_);
  add_choice(parser, "--format", asked_, formats_,
             fmt::format("{} (default: by the extension of -o, else {})", help, fallback_));
}

std::string FormattedOutput::format() const {
  if (!asked_.empty()) return asked_;
  const std::string extension = std::filesystem::path(path_).extension().string();
  for (std::string format : {"csv", "json", "svg"}) {
    if (extension == "." + format && std::find(formats_.begin(), formats_.end(), format) != formats_.end())
      return format;
  }
  return fallback_;
}

ScheduleOutput::ScheduleOutput(CLI::App& parser, std::string fallback)
    : output_({"table", "csv", "json", "svg", "trace", "none"}, std::move(fallback)) {
  output_.add_options(parser);
  add_choice(parser, "--colour,--color", colour_, {"auto", "always", "never"},
             "Colour of the table (default: auto, only on a terminal and without NO_COLOR)");
}

void ScheduleOutput::write(const Schedule& schedule) const {
  if (is_picture(format())) return write_slots(as_drawn(schedule));
  write_slots(schedule);
}

void ScheduleOutput::write_slots(const Schedule& schedule) const {
  const std::string chosen = format();
  if (chosen == "none") return;
  write_output(path(), [&](std::ostream& out) { write_as(out, schedule, chosen); });
}

void ScheduleOutput::write_as(std::ostream& out, const Schedule& schedule, const std::string& format) const {
  if (format == "csv") return write_csv(out, schedule);
  if (format == "json") return write_json(out, schedule);
  if (format == "svg") return write_svg(out, schedule);
  if (format == "trace") return write_trace(out, schedule);
  write_table(out, schedule.rows, table_options(path(), colour_));
}

}  // namespace stagecraft::cli

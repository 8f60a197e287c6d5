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

const std::vector<std::string> kScheduleFormats = {"table", "csv", "json", "svg", "trace", "none"};

bool is_picture(const std::string& format) { return format == "table" || format == "svg" || format == "trace"; }

bool environment_allows_colour() {
  const char* no_colour = std::getenv("NO_COLOR");  // https://no-color.org: any text at all forbids it
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

std::string choose_format(const std::string& asked, const std::string& output, const std::vector<std::string>& known,
                          const std::string& fallback) {
  if (!asked.empty()) return asked;
  const std::string extension = std::filesystem::path(output).extension().string();
  for (std::string format : {"csv", "json", "svg"}) {
    if (extension == "." + format && std::find(known.begin(), known.end(), format) != known.end()) return format;
  }
  return fallback;
}

ScheduleOutput::ScheduleOutput(CLI::App& parser, std::string fallback) : fallback_(std::move(fallback)) {
  add_output(parser, path_);
  add_choice(parser, "--format", asked_, kScheduleFormats,
             fmt::format("What to write (default: by the extension of -o, else {})", fallback_));
  add_choice(parser, "--colour,--color", colour_, {"auto", "always", "never"},
             "Colour of the table (default: auto, only on a terminal and without NO_COLOR)");
}

std::string ScheduleOutput::format() const { return choose_format(asked_, path_, kScheduleFormats, fallback_); }

void ScheduleOutput::write(const Schedule& schedule) const {
  if (is_picture(format())) return write_slots(as_drawn(schedule));
  write_slots(schedule);
}

void ScheduleOutput::write_slots(const Schedule& schedule) const {
  const std::string chosen = format();
  if (chosen == "none") return;
  write_output(path_, [&](std::ostream& out) { write_as(out, schedule, chosen); });
}

void ScheduleOutput::write_as(std::ostream& out, const Schedule& schedule, const std::string& format) const {
  if (format == "csv") return write_csv(out, schedule);
  if (format == "json") return write_json(out, schedule);
  if (format == "svg") return write_svg(out, schedule);
  if (format == "trace") return write_trace(out, schedule);
  write_table(out, schedule.rows, table_options(path_, colour_));
}

}  // namespace stagecraft::cli

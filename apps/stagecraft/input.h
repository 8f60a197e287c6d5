#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include "failure.h"
#include "report_text.h"
#include "stagecraft/core/error.h"
#include "stagecraft/graph/program.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/cost_file.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

/// What the commands read: schedules, costs, timelines and exported models, from files or from standard input.
namespace stagecraft::cli {

/// The name of an input in messages: its path, or "<stdin>" for "-".
std::string source_name(const std::string& path);

/// Reads the rows of a CSV file, or of standard input for "-", in blocks, so that endless input is refused at its first
/// bad cell. Throws Failure when the input cannot be read or is empty, ParseError when it is not a schedule.
std::vector<Row> read_rows(const std::string& path);

/// Reads rows and makes a schedule of them, named after the file. Throws as `read_rows`, and ScheduleError.
Schedule read_schedule(const std::string& path);

/// Reads a whole text file, or standard input for "-". Throws Failure when it cannot be read or has more than 64 MiB.
std::string read_text(const std::string& path);

/// The name of a schedule read from `path`: the file name without folder and extension.
std::string schedule_name(const std::string& path);

/// Parses a file, or standard input for "-". An InvalidArgument of `parse`, with one line per problem, becomes a
/// Failure that names the file: the first problem is its line, the others are details.
template <typename Parse>
auto read_parsed(const std::string& path, Parse&& parse) {
  try {
    return parse(read_text(path));
  } catch (const InvalidArgument& error) {
    std::string line = error.what();
    std::string details;
    if (const std::size_t end = line.find('\n'); end != std::string::npos) {
      details = printable_lines(line.substr(end + 1)) + "\n";  // keys come from the file and may hold any bytes
      line.resize(end);
    }
    throw Failure(kUnusable, fmt::format("{}: {}", source_name(path), line), details);
  }
}

/// Adds the required option --costs FILE.
CLI::Option* add_costs(CLI::App& parser, std::string& target);

/// Reads a file of costs, or standard input for "-". Throws Failure with the first problem as its line and the others
/// as details.
Costs read_costs(const std::string& path);

/// The same, but also accepts costs by layer.
CostFile read_cost_file(const std::string& path);

/// The exported model that a command reads: FILE, and --model where the file holds several.
class ModelInput {
 public:
  explicit ModelInput(CLI::App& parser);

  [[nodiscard]] const std::string& file() const { return file_; }
  /// Empty: the only one.
  [[nodiscard]] const std::string& model() const { return model_; }
  /// Throws FileError.
  [[nodiscard]] graph::Program read() const;

 private:
  std::string file_;
  std::string model_;
};

}  // namespace stagecraft::cli

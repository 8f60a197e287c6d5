#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/schedule/schedule.h"

/// Schedules as CSV, the file format of `torch.distributed.pipelining`: a line is a rank, a cell an action, an empty
/// cell an idle slot. Each project reads the files of the other.
namespace stagecraft {

/// Writes CRLF line ends, as Python's csv module does.
void write_csv(std::ostream& out, const Schedule& schedule);
std::string to_csv(const Schedule& schedule);

/// Parses a file piece by piece: bad input is refused at its first bad cell, and the text is never held in memory as a
/// whole. Accepts LF, CRLF and CR, a missing last line end, a byte order mark, and cells in quotes.
class CsvReader {
 public:
  /// Parses the next piece of the file, which may be cut anywhere. Throws ParseError.
  void feed(std::string_view text);
  /// Call after the last piece: returns the rows and empties the reader. Throws ParseError.
  std::vector<Row> finish();

 private:
  void give_back_mark();
  void take(char c);
  void end_cell();
  void end_row();
  [[noreturn]] void refuse(std::string_view rule) const;
  [[noreturn]] void refuse_size(std::string_view what, std::int64_t limit) const;

  std::vector<Row> rows_;
  Row row_;
  std::string cell_;
  std::int64_t slots_ = 0;
  std::size_t mark_matched_ = 0;  // bytes of a byte order mark matched so far at the start of the file
  bool row_has_text_ = false;     // the line is not empty, so it has at least one cell
  bool in_quotes_ = false;
  bool after_quotes_ = false;  // the cell was quoted and its quotes are closed
  bool after_cr_ = false;      // skip an LF that follows the CR
};

/// Parses a whole file with a CsvReader. Throws ParseError.
std::vector<Row> parse_csv(std::string_view text);

/// Whether an argument that names a schedule or a file is a file: it ends in ".csv".
bool is_schedule_file(std::string_view name);

/// Throws InvalidArgument when the file cannot be read, ParseError when it is not CSV of actions, ScheduleError as
/// Schedule::from_rows does.
Schedule read_schedule(const std::string& path);

}  // namespace stagecraft

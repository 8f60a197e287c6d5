#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/schedule/schedule.h"

/// Schedules as CSV, the file format of `torch.distributed.pipelining`: a line is a rank, a cell an action, an empty
/// cell an idle slot. Files travel both ways.
namespace stagecraft {

/// Writes CRLF line ends, as Python's csv module does.
void write_csv(std::ostream& out, const Schedule& schedule);
std::string to_csv(const Schedule& schedule);

/// Reads a file piece by piece, so that endless or absurd input is refused at its first bad cell and never held in
/// memory. Accepts LF, CRLF and CR, a missing last line end, a byte order mark, and cells in quotes.
class CsvReader {
 public:
  /// The next piece of the file, cut anywhere. Throws ParseError.
  void feed(std::string_view text);
  /// After the last piece: the rows. Throws ParseError. The reader is empty again afterwards.
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
  std::size_t mark_matched_ = 0;  // bytes of a byte order mark at the beginning of the file, held back
  bool row_has_text_ = false;     // something stood on this line, so it has at least one cell
  bool in_quotes_ = false;
  bool after_quotes_ = false;  // the cell was quoted and its quotes are closed
  bool after_cr_ = false;      // swallow the LF of a CRLF
};

/// All of the above at once.
std::vector<Row> parse_csv(std::string_view text);

}  // namespace stagecraft

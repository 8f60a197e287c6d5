#include "stagecraft/schedule/csv.h"

#include <fstream>
#include <ostream>
#include <sstream>

#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft {
namespace {

constexpr std::size_t kMaxCell = 96;  // the longest action has 53 characters
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// The cell, quoted for an error message: printable, on one line, at most 40 bytes of it.
std::string shown_cell(std::string_view cell) {
  constexpr std::size_t kShown = 40;
  std::string text = "'";
  for (const char c : cell.substr(0, kShown)) {
    if (c >= 0x20 && c < 0x7f) {
      text += c;
    } else {
      append_escaped(text, c);
    }
  }
  return text + (cell.size() > kShown ? "...'" : "'");
}

}  // namespace

void write_csv(std::ostream& out, const Schedule& schedule) {
  std::string line;
  for (const Row& row : schedule.rows) {
    line.clear();
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += ',';
      append_text(line, row[i]);
    }
    if (row.size() == 1 && line.empty()) line = "\"\"";  // an empty line would be read as a rank without slots
    line += "\r\n";
    out << line;
  }
}

std::string to_csv(const Schedule& schedule) {
  std::ostringstream out;
  write_csv(out, schedule);
  return out.str();
}

void CsvReader::feed(std::string_view text) {
  while (mark_matched_ < kByteOrderMark.size() && !text.empty()) {
    if (text.front() != kByteOrderMark[mark_matched_]) {
      give_back_mark();
      break;
    }
    ++mark_matched_;
    text.remove_prefix(1);
  }
  for (const char c : text) take(c);
}

/// Parses the held-back bytes as text: they are not a complete byte order mark.
void CsvReader::give_back_mark() {
  const std::string_view held = kByteOrderMark.substr(0, mark_matched_);
  mark_matched_ = kByteOrderMark.size();
  for (const char c : held) take(c);
}

void CsvReader::take(char c) {
  if (after_cr_) {
    after_cr_ = false;
    if (c == '\n') return;
  }
  if (in_quotes_) {
    if (c == '"') {
      in_quotes_ = false;
      after_quotes_ = true;
      return;
    }
  } else if (c == ',') {
    return end_cell();
  } else if (c == '\n' || c == '\r') {
    after_cr_ = c == '\r';
    return end_row();
  } else if (c == '"' && cell_.empty() && !after_quotes_) {
    cell_.clear();
    in_quotes_ = row_has_text_ = true;
    return;
  }
  row_has_text_ = true;
  cell_ += c;
  if (after_quotes_) refuse("nothing may follow the closing quote of a cell: remove the quotes");
  if (cell_.size() > kMaxCell) refuse("a cell holds one action of at most 53 characters: is this a schedule in CSV?");
  if (c == '\0') refuse("a schedule is plain text: is this a binary file?");
}

void CsvReader::end_cell() {
  row_has_text_ = true;
  const auto parsed = parse_action(cell_);
  if (const auto* error = std::get_if<ActionTextError>(&parsed)) refuse(error->rule);
  if (++slots_ > kMaxSlots) refuse_size("slots", kMaxSlots);
  row_.push_back(std::get<Action>(parsed));
  cell_.clear();
  after_quotes_ = false;
}

void CsvReader::end_row() {
  if (row_has_text_) end_cell();
  if (static_cast<std::int64_t>(rows_.size()) == kMaxRanks) refuse_size("rows", kMaxRanks);
  row_.shrink_to_fit();
  rows_.push_back(std::move(row_));
  row_.clear();
  row_has_text_ = false;
}

void CsvReader::refuse(std::string_view rule) const {
  const int row = static_cast<int>(rows_.size()) + 1;
  const int column = static_cast<int>(row_.size()) + 1;
  throw ParseError("row " + std::to_string(row) + ", column " + std::to_string(column) + ": " + shown_cell(cell_) +
                       " is not an action: " + std::string(rule),
                   row, column);
}

void CsvReader::refuse_size(std::string_view what, std::int64_t limit) const {
  const int row = static_cast<int>(rows_.size()) + 1;
  throw ParseError("row " + std::to_string(row) + ": more than " + std::to_string(limit) + " " + std::string(what) +
                       ", the most a schedule has: is this a schedule in CSV?",
                   row, 0);
}

std::vector<Row> CsvReader::finish() {
  if (mark_matched_ < kByteOrderMark.size()) give_back_mark();
  if (in_quotes_) refuse("a quote is opened and never closed: remove the quotes");
  if (row_has_text_) end_row();
  std::vector<Row> rows = std::move(rows_);
  *this = CsvReader();
  return rows;
}

std::vector<Row> parse_csv(std::string_view text) {
  CsvReader reader;
  reader.feed(text);
  return reader.finish();
}

bool is_schedule_file(std::string_view name) { return name.ends_with(".csv"); }

Schedule read_schedule(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw InvalidArgument("the schedule file '" + path + "' cannot be read: give a CSV file, or a known name");
  return Schedule::from_rows(parse_csv(text.str()), path);
}

}  // namespace stagecraft

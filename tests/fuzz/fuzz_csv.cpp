// Any bytes, read in any pieces, are a schedule or refused with a ParseError; a schedule stays the same when it is
// written and read again.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/csv.h"

namespace {

using stagecraft::CsvReader;
using stagecraft::ParseError;
using stagecraft::Row;

void require(bool holds) {
  if (!holds) std::abort();
}

struct Reading {
  std::optional<std::vector<Row>> rows;
  int error_row = 0;
  int error_column = 0;

  bool operator==(const Reading&) const = default;
};

/// Cut after `first` bytes, and then every `step`.
Reading read_in_pieces(std::string_view text, std::size_t first, std::size_t step) {
  try {
    CsvReader reader;
    reader.feed(text.substr(0, std::min(first, text.size())));
    for (std::size_t at = first; at < text.size(); at += step) reader.feed(text.substr(at, step));
    return {.rows = reader.finish()};
  } catch (const ParseError& error) {
    return {.rows = std::nullopt, .error_row = error.row(), .error_column = error.column()};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::size_t first = data[0] >> 4;
  const std::size_t step = 1 + (data[0] & 15U);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);

  const Reading whole = read_in_pieces(text, text.size(), 1);
  require(read_in_pieces(text, first, step) == whole);
  if (!whole.rows) return 0;

  stagecraft::Schedule schedule;
  schedule.rows = *whole.rows;
  require(stagecraft::parse_csv(stagecraft::to_csv(schedule)) == *whole.rows);
  return 0;
}

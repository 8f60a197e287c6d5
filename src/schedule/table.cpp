#include "stagecraft/schedule/table.h"

#include <algorithm>
#include <array>
#include <ostream>
#include <string>
#include <string_view>

#include "stagecraft/schedule/action.h"

namespace stagecraft {
namespace {

constexpr std::size_t kColumnGap = 2;
constexpr std::string_view kReset = "\x1b[0m";
constexpr std::string_view kMarked = "\x1b[7m";  // reverse video, on top of the colour

/// Colours by ActionKind: full for compute, dimmed for communication and sharding.
constexpr std::array<std::string_view, kActionKinds> kColours = {
    "",           "\x1b[36m",   "\x1b[33m",   "\x1b[32m",   "\x1b[35m",   "\x1b[1m",   "\x1b[2;37m",
    "\x1b[2;37m", "\x1b[2;37m", "\x1b[2;36m", "\x1b[2;36m", "\x1b[2;33m", "\x1b[2;33m"};

/// A range of steps or ranks of the table.
struct Range {
  int first;
  int end;
};

Range clamped(int first, int end, int size) {
  first = std::clamp(first, 0, size);
  return {first, std::clamp(end, first, size)};
}

struct Column {
  int rank;
  std::size_t width;
};

std::string rank_title(int rank) { return "Rank " + std::to_string(rank); }

/// A line of text with pieces at given columns. Writes blanks only before a piece, so there are no trailing blanks.
class Line {
 public:
  void start() {
    text_.clear();
    at_ = 0;
  }
  void put(std::size_t column, std::string_view piece, std::string_view before = {}, std::string_view after = {}) {
    if (column > at_) text_.append(column - at_, ' ');
    text_.append(before).append(piece).append(after);
    at_ = std::max(column, at_) + piece.size();
  }
  [[nodiscard]] std::size_t at() const { return at_; }
  void finish(std::ostream& out) {
    text_ += '\n';
    out << text_;
  }

 private:
  std::string text_;
  std::size_t at_ = 0;
};

class TableWriter {
 public:
  TableWriter(std::ostream& out, const std::vector<Row>& rows, const TableOptions& options)
      : out_(out), rows_(rows), options_(options) {
    std::size_t longest = 0;
    for (const Row& row : rows) longest = std::max(longest, row.size());
    const auto steps = static_cast<int>(longest);
    steps_ = clamped(options.first_step, options.end_step, steps);
    digits_ = std::to_string(std::max(steps - 1, 0)).size();
    label_width_ = std::string_view("Step : ").size() + digits_;
    if (options.mark) remark_ = "<-- here: rank " + std::to_string(options.mark->rank.value);
  }

  void write() {
    const Range ranks = clamped(options_.first_rank, options_.end_rank, static_cast<int>(rows_.size()));
    if (ranks.first == ranks.end) out_ << "(no ranks)\n";
    std::vector<Column> block;
    std::size_t width = label_width_;
    for (int rank = ranks.first; rank < ranks.end; ++rank) {
      const Column column{rank, column_width(rank)};
      if (!block.empty() && exceeds(width + kColumnGap + column.width)) {
        write_block(block);
        out_ << '\n';
        block.clear();
        width = label_width_;
      }
      width += (block.empty() ? 0 : kColumnGap) + column.width;
      block.push_back(column);
    }
    if (!block.empty()) write_block(block);
  }

 private:
  [[nodiscard]] bool exceeds(std::size_t width) const {
    const std::size_t remark = remark_.empty() ? 0 : kColumnGap + remark_.size();
    return options_.width > 0 && width + remark > static_cast<std::size_t>(options_.width);
  }

  [[nodiscard]] int end_of(int rank) const {
    return std::min(steps_.end, static_cast<int>(rows_[static_cast<std::size_t>(rank)].size()));
  }

  std::size_t column_width(int rank) {
    std::size_t width = rank_title(rank).size();
    const Row& row = rows_[static_cast<std::size_t>(rank)];
    for (int step = steps_.first; step < end_of(rank); ++step) {
      cell_.clear();
      append_text(cell_, row[static_cast<std::size_t>(step)]);
      width = std::max(width, cell_.size());
    }
    return width;
  }

  struct Placed {
    int rank;
    int end;
    std::size_t column;
  };

  void write_block(const std::vector<Column>& block) {
    line_.start();
    std::vector<Placed> live;
    std::size_t column = label_width_;
    int end = steps_.first;
    bool marked = false;
    for (const Column& c : block) {
      line_.put(column, rank_title(c.rank));
      live.push_back({c.rank, end_of(c.rank), column});
      column += c.width + kColumnGap;
      end = std::max(end, end_of(c.rank));
      marked = marked || (options_.mark && options_.mark->rank.value == c.rank);
    }
    line_.finish(out_);
    if (marked && options_.mark->step < steps_.end) end = std::max(end, options_.mark->step + 1);
    for (int step = steps_.first; step < end; ++step) {
      // Drops rows that have ended, so that the time is proportional to the slots, not to ranks times steps.
      std::erase_if(live, [&](const Placed& p) { return p.end <= step; });
      write_step(step, live, marked && options_.mark->step == step);
    }
  }

  void write_step(int step, const std::vector<Placed>& live, bool marked) {
    const std::string number = std::to_string(step);
    line_.start();
    line_.put(0, "Step " + std::string(digits_ - number.size(), '0') + number + ":");
    for (const Placed& p : live) {
      const Action& action = rows_[static_cast<std::size_t>(p.rank)][static_cast<std::size_t>(step)];
      if (action.is_idle()) continue;
      cell_.clear();
      append_text(cell_, action);
      if (!options_.colour) {
        line_.put(p.column, cell_);
        continue;
      }
      std::string before(kColours[static_cast<std::size_t>(action.kind())]);
      if (marked && options_.mark->rank.value == p.rank) before += kMarked;
      line_.put(p.column, cell_, before, kReset);
    }
    if (marked) line_.put(line_.at() + kColumnGap, remark_);
    line_.finish(out_);
  }

  std::ostream& out_;
  const std::vector<Row>& rows_;
  const TableOptions& options_;
  Range steps_{0, 0};
  std::size_t digits_ = 1;
  std::size_t label_width_ = 0;
  std::string remark_;
  std::string cell_;  // scratch
  Line line_;
};

}  // namespace

void write_table(std::ostream& out, const std::vector<Row>& rows, const TableOptions& options) {
  TableWriter(out, rows, options).write();
}

}  // namespace stagecraft

#include "svg_rows.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "stagecraft/schedule/action.h"

namespace stagecraft::detail {

const std::string& SvgRows::draw(int rank, double top) {
  const Row& row = schedule_.rows[static_cast<std::size_t>(rank)];
  int idle_from = 0;
  for (int step = 0; step < static_cast<int>(row.size()); ++step) {
    const Action& action = row[static_cast<std::size_t>(step)];
    if (action.is_idle()) continue;
    add_idle(idle_from, step);
    add_action(step, action);
    idle_from = step + 1;
  }
  add_idle(idle_from, contents_.steps);

  out_ = fmt::format("<g transform=\"translate({} {})\">", num(layout_.left), num(top));
  if (!idle_.empty()) out_ += fmt::format("<path fill=\"url(#stagecraft-idle)\" d=\"{}\"/>", idle_);
  idle_.clear();
  put_cells();
  put_labels();
  out_ += "</g>\n";
  return out_;
}

/// One box for a whole run of idle slots.
void SvgRows::add_idle(int step, int end) {
  if (step >= end) return;
  idle_ += outline(ActionKind::kIdle, {step * layout_.cell_width, 0, (end - step) * layout_.cell_width - layout_.gap,
                                       layout_.cell_height});
}

void SvgRows::add_action(int step, const Action& action) {
  Box box{step * layout_.cell_width, 0, layout_.cell_width - layout_.gap, layout_.cell_height};
  if (action.is_overlap()) {
    box.height = (layout_.cell_height - layout_.gap) / 2;
    add_cell(step, action.first(), action, box);
    add_label(kUpper, step, action.first());
    box.y = layout_.cell_height - box.height;
    add_cell(step, action.second(), action, box);
    add_label(kLower, step, action.second());
    return;
  }
  if (is_compute(action.kind())) {
    add_cell(step, action, action, box);
    add_label(kWhole, step, action);
    return;
  }
  const double inset = layout_.labels ? 1 : 0;
  const double trim = std::round(layout_.cell_height * 0.18);
  box = {box.x + inset, box.y + trim, box.width - 2 * inset, box.height - 2 * trim};
  add_cell(step, action, action, box);
  add_label(kSmall, step, action);
}

void SvgRows::add_cell(int step, const Action& part, const Action& action, const Box& box) {
  const int shade = is_compute(part.kind()) ? shade_of(schedule_.placement, part.stage()) : 0;
  std::string& cells = cells_[static_cast<std::size_t>(part.kind()) * kShades + static_cast<std::size_t>(shade)];
  const std::string path = outline(part.kind(), box);
  if (!layout_.hover) {
    cells += path;
    return;
  }
  fmt::format_to(std::back_inserter(cells), "<path d=\"{}\"><title>{} at step {}</title></path>", path, to_text(action),
                 step);
}

void SvgRows::add_label(Line line, int step, const Action& part) {
  if (line == kSmall ? !layout_.other_labels : !layout_.labels) return;
  const double middle = (step + 0.5) * layout_.cell_width - layout_.gap / 2;
  fmt::format_to(std::back_inserter(labels_[line]), "<text x=\"{}\">{}</text>", num(middle), label_of(part));
}

void SvgRows::put_cells() {
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    if (cells_[i].empty()) continue;
    const std::string fill = fill_of(static_cast<ActionKind>(i / kShades), static_cast<int>(i % kShades));
    out_ += layout_.hover ? fmt::format("<g fill=\"{}\">{}</g>", fill, cells_[i])
                          : fmt::format("<path fill=\"{}\" d=\"{}\"/>", fill, cells_[i]);
    cells_[i].clear();
  }
}

/// Labels ignore the pointer, so that the cell below shows its hover text.
void SvgRows::put_labels() {
  constexpr std::array<double, 4> kMiddles = {0.5, 0.25, 0.75, 0.5};
  for (std::size_t line = 0; line < labels_.size(); ++line) {
    if (labels_[line].empty()) continue;
    const double font = line == kSmall ? layout_.small_font : layout_.font;
    const double baseline = layout_.cell_height * kMiddles[line] + 0.36 * font;  // digits are 0.72 of the font high
    out_ += fmt::format("<g transform=\"translate(0 {})\" font-size=\"{}\" pointer-events=\"none\">{}</g>",
                        num(baseline), num(font), labels_[line]);
    labels_[line].clear();
  }
}

}  // namespace stagecraft::detail

#pragma once

#include <rapidcheck.h>

#include <string>
#include <vector>

#include "dice.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/schedule.h"

/// Actions and tables that need not make any sense, and the ways in which people and programs write them down.
namespace stagecraft::property {

inline Action random_plain(ActionKind kind, Dice& dice) {
  const auto id = [&](std::int32_t largest) {
    const std::vector<std::int32_t> ids = {
        0, 1, 9, 10, largest - 1, largest, static_cast<std::int32_t>(dice.below(static_cast<std::size_t>(largest)))};
    return dice.one_of(ids);
  };
  const StageId stage(id(kMaxStage));
  return has_microbatch(kind) ? Action(kind, stage, MicrobatchId(id(kMaxMicrobatch))) : Action::of_stage(kind, stage);
}

inline Action random_action(ActionKind kind, Dice& dice) {
  if (kind == ActionKind::kIdle) return Action::idle();
  if (kind != ActionKind::kOverlap) return random_plain(kind, dice);
  const Action forward = random_plain(ActionKind::kForward, dice);
  const Action backward = random_plain(dice.chance(50) ? ActionKind::kBackward : ActionKind::kBackwardInput, dice);
  return dice.chance(50) ? Action::overlap(forward, backward) : Action::overlap(backward, forward);
}

/// Rows of any length, also none, also of idle slots only.
inline std::vector<Row> random_rows(Dice& dice) {
  std::vector<Row> rows(dice.below(6));
  for (Row& row : rows) {
    const int idle_percent = static_cast<int>(dice.below(3)) * 50;
    for (std::size_t slots = dice.below(6); slots > 0; --slots) {
      const auto kind = static_cast<ActionKind>(dice.below(kActionKinds));
      row.push_back(dice.chance(idle_percent) ? Action::idle() : random_action(kind, dice));
    }
  }
  return rows;
}

/// The rows as another program could have written them: with any line end, quotes and blanks, with or without a byte
/// order mark and the last line end.
inline std::string in_some_dialect(const std::vector<Row>& rows, Dice& dice) {
  const std::string line_end = dice.one_of(std::vector<std::string>{"\n", "\r\n", "\r"});
  std::string text = dice.chance(20) ? "\xEF\xBB\xBF" : "";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      std::string cell = to_text(rows[r][i]);
      if (dice.chance(10)) cell = " " + cell + "\t";
      // A line without a character is a row without a slot, so a lone idle slot needs its quotes.
      const bool vanishes = cell.empty() && rows[r].size() == 1;
      if (vanishes || dice.chance(20)) cell = '"' + cell + '"';
      text += (i > 0 ? "," : "") + cell;
    }
    const bool is_last = r + 1 == rows.size();
    if (!is_last || rows[r].empty() || dice.chance(50)) text += line_end;
  }
  return text;
}

}  // namespace stagecraft::property

#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "dice.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/schedule.h"

/// One random mistake, of the kinds that an editor of schedules or a faulty pass would make.
namespace stagecraft::property {

class Mutation {
 public:
  Mutation(Schedule& schedule, Dice& dice) : schedule_(schedule), dice_(dice) {}

  /// Changes the schedule and says what was done. The schedule has at least one action. Where the chosen change is not
  /// possible (a swap in a row of one), nothing changes, which is a legal mutation too.
  std::string apply() {
    // A change of order within the row is listed three times: only that can be accepted, or refused in one model and
    // not in another.
    constexpr std::array kChanges = {
        &Mutation::swap_neighbours, &Mutation::swap_neighbours, &Mutation::swap_neighbours,   &Mutation::swap_any,
        &Mutation::move_in_row,     &Mutation::move_in_row,     &Mutation::move_in_row,       &Mutation::move_to_rank,
        &Mutation::remove,          &Mutation::duplicate,       &Mutation::change_microbatch, &Mutation::change_kind,
        &Mutation::change_stage};
    do {
      rank_ = dice_.below(schedule_.rows.size());
    } while (row().empty());
    slot_ = dice_.below(row().size());
    const std::string before =
        "rank " + std::to_string(rank_) + ", slot " + std::to_string(slot_) + ", " + to_text(row()[slot_]) + ": ";
    return before + (this->*kChanges[dice_.below(kChanges.size())])();
  }

 private:
  Row& row() { return schedule_.rows[rank_]; }
  static auto position(Row& row, std::size_t slot) { return row.begin() + static_cast<std::ptrdiff_t>(slot); }

  std::string swap_neighbours() {
    if (slot_ + 1 == row().size()) return "kept";
    std::swap(row()[slot_], row()[slot_ + 1]);
    return "swapped with the next";
  }

  std::string swap_any() {
    const std::size_t other = dice_.below(row().size());
    std::swap(row()[slot_], row()[other]);
    return "swapped with slot " + std::to_string(other);
  }

  std::string remove() {
    row().erase(position(row(), slot_));
    return "removed";
  }

  std::string duplicate() {
    const Action copy = row()[slot_];
    const std::size_t to = slot_ + 1 + dice_.below(row().size() - slot_);
    row().insert(position(row(), to), copy);
    return "repeated in slot " + std::to_string(to);
  }

  std::string move_to(std::size_t rank) {
    const Action moved = row()[slot_];
    remove();
    Row& target = schedule_.rows[rank];
    const std::size_t to = dice_.below(target.size() + 1);
    target.insert(position(target, to), moved);
    return "moved to rank " + std::to_string(rank) + ", slot " + std::to_string(to);
  }

  std::string move_in_row() { return move_to(rank_); }
  std::string move_to_rank() { return move_to(dice_.below(schedule_.rows.size())); }

  /// Replaces one part of the action by what `change` makes of it.
  template <typename Change>
  std::string change_part(Change change) {
    Action& action = row()[slot_];
    if (action.is_idle()) return "kept";
    if (!action.is_overlap()) {
      action = change(action);
    } else if (dice_.chance(50)) {
      action = Action::overlap(change(action.first()), action.second());
    } else {
      action = Action::overlap(action.first(), change(action.second()));
    }
    return "changed to " + to_text(action);
  }

  /// One more than there are, so that numbers out of range occur too.
  StageId any_stage() { return StageId(dice_.below(static_cast<std::size_t>(schedule_.stages()) + 1)); }
  MicrobatchId any_microbatch() {
    return MicrobatchId(dice_.below(static_cast<std::size_t>(schedule_.microbatches) + 1));
  }

  std::string change_stage() {
    return change_part([&](const Action& a) { return Action(a.kind(), any_stage(), a.microbatch()); });
  }

  std::string change_microbatch() {
    return change_part(
        [&](const Action& a) { return has_microbatch(a.kind()) ? Action(a.kind(), a.stage(), any_microbatch()) : a; });
  }

  std::string change_kind() {
    const bool in_overlap = row()[slot_].is_overlap();
    return change_part([&](const Action& a) {
      if (in_overlap) return with_other_backward(a);
      const ActionKind kind = any_plain_kind();
      if (!has_microbatch(kind)) return Action::of_stage(kind, a.stage());
      return Action(kind, a.stage(), has_microbatch(a.kind()) ? a.microbatch() : any_microbatch());
    });
  }

  /// An overlap is one F and one B or I; other pairs have no text.
  static Action with_other_backward(const Action& a) {
    if (a.kind() == ActionKind::kBackward) return Action::backward_input(a.stage(), a.microbatch());
    if (a.kind() == ActionKind::kBackwardInput) return Action::backward(a.stage(), a.microbatch());
    return a;
  }

  ActionKind any_plain_kind() {
    const auto kind = static_cast<ActionKind>(1 + dice_.below(kActionKinds - 1));
    return kind == ActionKind::kOverlap ? ActionKind::kForward : kind;
  }

  Schedule& schedule_;
  Dice& dice_;
  std::size_t rank_ = 0;
  std::size_t slot_ = 0;
};

}  // namespace stagecraft::property

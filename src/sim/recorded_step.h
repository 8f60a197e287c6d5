#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "stagecraft/schedule/timeline.h"
#include "stagecraft/sim/profile.h"

namespace stagecraft::detail {

/// A message from the end of its SEND to the beginning of its consumer, all on one clock.
struct RecordedMessage {
  RankId from;
  RankId to;
  std::int64_t bytes = 0;
  double sent = 0;    ///< End of the SEND.
  double asked = 0;   ///< When the consumer was ready for it.
  double waited = 0;  ///< How long it then took to have it.

  /// It was sent only after the consumer had begun to wait: what the wait lasted beyond is the message's way.
  [[nodiscard]] bool was_late() const { return sent >= asked; }
  [[nodiscard]] double delay() const { return asked + waited - sent; }
};

/// One step, its actions told apart from their messages.
class RecordedStep {
 public:
  /// `ahead`: by how much each rank's clock is ahead of the first one's.
  RecordedStep(const StepTimelines& step, const Placement& placement, const std::vector<double>& ahead);

  RecordedStep(RecordedStep&&) = default;
  RecordedStep(const RecordedStep&) = delete;  // it points into itself
  RecordedStep& operator=(const RecordedStep&) = delete;

  /// The message that a compute action consumed, if any.
  [[nodiscard]] std::optional<RecordedMessage> message_for(const Span& consumer, RankId rank) const;
  /// B or I: which of the two this stage did for this microbatch.
  [[nodiscard]] ActionKind backward_of(StageId stage, MicrobatchId microbatch) const;

  [[nodiscard]] const StepTimelines& ranks() const { return ranks_; }
  /// Earliest begin and latest end over all ranks.
  [[nodiscard]] double begin() const { return begin_; }
  [[nodiscard]] double end() const { return end_; }
  /// Start of the rank's first action.
  [[nodiscard]] double begin_of(RankId rank) const { return ranks_[rank.index()].front().start; }

 private:
  using Key = std::tuple<ActionKind, std::int32_t, std::int32_t>;
  static Key key_of(const Action& action) { return {action.kind(), action.stage().value, action.microbatch().value}; }

  StepTimelines ranks_;  // in the order of time, on one clock
  const Placement& placement_;
  std::map<Key, const Span*> sends_;
  std::map<std::pair<std::int32_t, std::int32_t>, ActionKind> backwards_;
  double begin_ = 0;
  double end_ = 0;
};

/// What was computed and reduced, as a schedule without messages. Throws ScheduleError when it is none.
Schedule computed_schedule(const StepTimelines& step, const std::string& name);

/// By how much each rank's clock is ahead of the first one's. Ranks of one machine share a clock: only messages that
/// would have arrived before they were sent tell that they do not.
std::vector<double> clocks_ahead(const Recording& recording, const Placement& placement);

}  // namespace stagecraft::detail

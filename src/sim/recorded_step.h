#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "stagecraft/schedule/timeline.h"
#include "stagecraft/sim/profile.h"

namespace stagecraft::detail {

/// A message from the end of its SEND to the start of its consumer, in seconds on one clock.
struct RecordedMessage {
  RankId from;
  RankId to;
  std::int64_t bytes = 0;
  double sent = 0;    ///< End of the SEND.
  double asked = 0;   ///< When the consumer began to wait for it.
  double waited = 0;  ///< How long the consumer waited for it.

  /// Whether the message was sent after the consumer had begun to wait. `delay` is then its transfer time.
  [[nodiscard]] bool was_late() const { return sent >= asked; }
  [[nodiscard]] double delay() const { return asked + waited - sent; }
};

/// One recorded step, with clocks aligned and messages matched to their consumers.
class RecordedStep {
 public:
  /// `ahead` is by how many seconds each rank's clock is ahead of rank 0's.
  RecordedStep(const StepTimelines& step, const Placement& placement, const std::vector<double>& ahead);

  RecordedStep(RecordedStep&&) = default;
  RecordedStep(const RecordedStep&) = delete;  // sends_ and gathers_ point into ranks_
  RecordedStep& operator=(const RecordedStep&) = delete;

  /// The message that a compute action consumed, if any.
  [[nodiscard]] std::optional<RecordedMessage> message_for(const Span& consumer, RankId rank) const;
  /// Whether the stage ran a B or an I for this microbatch.
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
  /// How long the action waited for the parameters of its stage, before it waited for its message.
  [[nodiscard]] double wait_for_parameters(const Span& consumer, RankId rank) const;

  StepTimelines ranks_;  // in order of time, on one clock
  const Placement& placement_;
  std::map<Key, const Span*> sends_;
  std::map<std::pair<std::int32_t, std::int32_t>, ActionKind> backwards_;
  std::map<std::pair<std::size_t, std::int32_t>, std::vector<const Span*>>
      gathers_;  // that made a rank wait, by rank and stage
  double begin_ = 0;
  double end_ = 0;
};

/// The recorded computes and REDUCE_GRADs as a schedule without messages. Throws ScheduleError when they are not one.
Schedule computed_schedule(const StepTimelines& step, const std::string& name);

/// By how many seconds each rank's clock is ahead of rank 0's. Clocks count as equal unless a message seems to have
/// arrived before it was sent.
std::vector<double> clocks_ahead(const Recording& recording, const Placement& placement);

}  // namespace stagecraft::detail

#include "recorded_step.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/dataflow.h"

namespace stagecraft::detail {

RecordedStep::RecordedStep(const StepTimelines& step, const Placement& placement, const std::vector<double>& ahead)
    : ranks_(step), placement_(placement) {
  begin_ = std::numeric_limits<double>::infinity();
  end_ = -begin_;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    for (Span& span : ranks_[r]) {
      span.start -= ahead[r];
      span.end -= ahead[r];
      begin_ = std::min(begin_, span.start);
      end_ = std::max(end_, span.end);
    }
    // Actions that ran in another thread come last.
    std::stable_sort(ranks_[r].begin(), ranks_[r].end(),
                     [](const Span& a, const Span& b) { return a.beside != b.beside ? b.beside : a.start < b.start; });
  }
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    for (const Span& span : ranks_[r]) {
      if (span.beside && span.action.kind() == ActionKind::kUnshard && span.waited > 0) {
        gathers_[{r, span.action.stage().value}].push_back(&span);
      }
      if (is_send(span.action.kind())) sends_[key_of(span.action)] = &span;
      if (gives_input_gradient(span.action.kind())) {
        backwards_[{span.action.stage().value, span.action.microbatch().value}] = span.action.kind();
      }
    }
  }
}

std::optional<RecordedMessage> RecordedStep::message_for(const Span& consumer, RankId rank) const {
  const Action send = message_needed(placement_, consumer.action);
  if (send.is_idle()) return std::nullopt;
  const auto found = sends_.find(key_of(send));
  if (found == sends_.end()) return std::nullopt;
  const Span& sent = *found->second;
  const double before = wait_for_parameters(consumer, rank);
  return RecordedMessage{.from = placement_.rank_of(send.stage()),
                         .to = rank,
                         .bytes = sent.bytes,
                         .sent = sent.end,
                         .asked = consumer.start + before,
                         .waited = consumer.waited - before};
}

double RecordedStep::wait_for_parameters(const Span& consumer, RankId rank) const {
  const auto found = gathers_.find({rank.index(), consumer.action.stage().value});
  if (found == gathers_.end()) return 0;
  double waited = 0;
  for (const Span* gather : found->second) {
    if (gather->end >= consumer.start && gather->end <= consumer.end) waited += gather->waited;
  }
  return std::min(waited, consumer.waited);
}

ActionKind RecordedStep::backward_of(StageId stage, MicrobatchId microbatch) const {
  const auto found = backwards_.find({stage.value, microbatch.value});
  return found == backwards_.end() ? ActionKind::kBackward : found->second;
}

Schedule computed_schedule(const StepTimelines& step, const std::string& name) {
  std::vector<Row> rows;
  for (const Timeline& timeline : step) {
    Row& row = rows.emplace_back();
    for (const Span& span : timeline) {
      const bool reduces = span.action.kind() == ActionKind::kReduceGrad && !span.beside;
      if (is_compute(span.action.kind()) || reduces) row.push_back(span.action);
    }
  }
  return Schedule::from_rows(std::move(rows), name);
}

namespace {

using Messages = std::vector<RecordedMessage>;

/// By how much the receivers' clock is ahead of the senders' at most: a message cannot arrive before it was sent.
double most_ahead(const Messages& messages) {
  double most = std::numeric_limits<double>::infinity();
  for (const RecordedMessage& message : messages) most = std::min(most, message.delay());
  return most;
}

/// The shortest delay of a message that its receiver has waited for, if its clock is that much ahead of the sender's.
/// The delay of another may be much longer than its transfer. Infinite if there is none.
double shortest_wait(const Messages& messages, double ahead) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const RecordedMessage& message : messages) {
    if (message.sent + ahead >= message.asked) shortest = std::min(shortest, message.delay() - ahead);
  }
  return shortest;
}

/// By how much the clock of one rank is ahead of another's. Clocks are trusted as far as the messages allow.
double ahead_of(const Messages& there, const Messages& back) {
  const double most = most_ahead(there);
  const double least = -most_ahead(back);
  if (least > most) return (least + most) / 2;
  if (least <= 0 && most >= 0) return 0;
  const double nearest = least > 0 ? least : most;
  // Where both have waited, a message takes as long in one direction as in the other.
  const double way_there = shortest_wait(there, nearest);
  const double way_back = shortest_wait(back, -nearest);
  if (std::isinf(way_there) || std::isinf(way_back)) return nearest;
  return std::clamp(nearest + (way_there - way_back) / 2, least, most);
}

}  // namespace

std::vector<double> clocks_ahead(const Recording& recording, const Placement& placement) {
  const auto ranks = static_cast<std::size_t>(placement.ranks());
  const std::vector<double> none(ranks, 0.0);
  std::map<std::pair<std::size_t, std::size_t>, Messages> messages;  // by sender and receiver
  for (const StepTimelines& timelines : recording.steps) {
    const RecordedStep step(timelines, placement, none);
    for (std::size_t r = 0; r < ranks; ++r) {
      for (const Span& span : step.ranks()[r]) {
        if (const auto message = step.message_for(span, RankId(r)))
          messages[{message->from.index(), r}].push_back(*message);
      }
    }
  }
  std::vector<double> ahead = none;
  std::vector<bool> is_set(ranks, false);
  std::vector<std::size_t> next = {0};
  is_set[0] = true;
  while (!next.empty()) {
    const std::size_t from = next.back();
    next.pop_back();
    for (std::size_t to = 0; to < ranks; ++to) {
      const Messages& there = messages[{from, to}];
      const Messages& back = messages[{to, from}];
      if (is_set[to] || (there.empty() && back.empty())) continue;
      is_set[to] = true;
      next.push_back(to);
      ahead[to] = ahead[from] + ahead_of(there, back);
    }
  }
  return ahead;
}

}  // namespace stagecraft::detail

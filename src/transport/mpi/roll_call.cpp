#include "roll_call.h"

namespace stagecraft::mpi {

RollCall::RollCall(RankId own, int ranks) : own_(own), departures_(static_cast<std::size_t>(ranks)) {}

void RollCall::hear(RankId from, const Envelope& envelope) {
  std::optional<Failure> failure;
  if (envelope.about >= 0) failure = Failure{RankId(envelope.about), envelope.header};
  switch (envelope.kind) {
    case Kind::kAbort:
      failures_.emplace(envelope.step, *failure);
      break;
    case Kind::kSettle:
      answers_[envelope.step][from.value] = failure;
      break;
    case Kind::kDepart:
      departures_[from.index()] = {{from, envelope.header}, failure.has_value()};
      break;
    case Kind::kData:
      break;
  }
}

const Failure* RollCall::failure() const {
  const auto found = failures_.find(step_);
  return found == failures_.end() ? nullptr : &found->second;
}

std::optional<Failure> RollCall::answer() {
  const Failure* known = failure();
  return answers_[step_][own_.value] = known != nullptr ? std::optional(*known) : std::nullopt;
}

bool RollCall::is_complete() const {
  const auto found = answers_.find(step_);
  return found != answers_.end() && found->second.size() == departures_.size();
}

std::vector<RankId> RollCall::missing() const {
  const auto found = answers_.find(step_);
  std::vector<RankId> ranks;
  for (std::size_t r = 0; r < departures_.size(); ++r) {
    if (found == answers_.end() || !found->second.contains(static_cast<std::int32_t>(r))) ranks.emplace_back(r);
  }
  return ranks;
}

std::optional<Failure> RollCall::conclude() {
  std::optional<Failure> outcome;
  for (const auto& [rank, failure] : answers_[step_]) {
    if (failure && (!outcome || failure->rank < outcome->rank)) outcome = failure;
  }
  answers_.erase(answers_.begin(), answers_.upper_bound(step_));
  if (outcome) {
    ++failed_steps_;
    failures_.insert_or_assign(step_, *outcome);
  } else {
    failures_.erase(step_);
  }
  ++step_;
  return outcome;
}

bool RollCall::all_others_departed() const {
  for (std::size_t r = 0; r < departures_.size(); ++r) {
    if (RankId(r) != own_ && !departures_[r]) return false;
  }
  return true;
}

std::optional<Failure> RollCall::failed_departure() const {
  for (const auto& departure : departures_) {
    if (departure && departure->failed) return departure->words;
  }
  return std::nullopt;
}

void RollCall::lose(RankId rank, const std::string& text) {
  if (!lost_ && !has_departed(rank)) lost_ = Failure{rank, text};
}

const Failure* RollCall::reason_to_give_up(RankId from) const {
  if (lost_) return &*lost_;
  return has_departed(from) ? &departures_[from.index()]->words : nullptr;
}

}  // namespace stagecraft::mpi

#include "roll_call.h"

#include <algorithm>

namespace stagecraft {

RollCall::RollCall(RankId own, int ranks) : own_(own), departures_(static_cast<std::size_t>(ranks)) {}

void RollCall::hear(RankId from, const Notice& notice) {
  using Kind = Notice::Kind;
  std::optional<Failure> failure;
  if (notice.about >= 0) failure = Failure{RankId(notice.about), notice.text};
  switch (notice.kind) {
    case Kind::kAbort:
    case Kind::kTimeout:
      if (notice.step < step_) break;  // a verdict has decided that step
      failures_.try_emplace(notice.step, Failed{*failure, notice.kind == Kind::kTimeout, Clock::now()});
      break;
    case Kind::kSettle:
      answers_[notice.step][from.value] = failure;
      break;
    case Kind::kVerdict:
      verdicts_[notice.step] = failure;
      break;
    case Kind::kGiveUp:
      give_up(*failure, notice.step);
      break;
    case Kind::kDepart:
      if (!departures_[from.index()]) ++departed_;
      departures_[from.index()] = {{from, notice.text}, failure.has_value(), notice.step};
      break;
    case Kind::kAsk:
    case Kind::kStanding:
      break;
  }
}

bool RollCall::add_failure(const Failure& failure, bool by_timeout) {
  return failures_.try_emplace(step_, Failed{failure, by_timeout, Clock::now()}).second;
}

const RollCall::Failed* RollCall::failure() const {
  const auto found = failures_.find(step_);
  return found == failures_.end() ? nullptr : &found->second;
}

std::optional<Failure> RollCall::answer() {
  std::optional<Failure> own;
  if (const Failed* known = failure()) own = known->failure;
  if (is_root()) answers_[step_][own_.value] = own;
  return own;
}

bool RollCall::is_complete() const {
  if (!is_root()) return verdicts_.contains(step_);
  const auto found = answers_.find(step_);
  return found != answers_.end() && found->second.size() == departures_.size();
}

std::optional<Failure> RollCall::verdict() const {
  if (!is_root()) return verdicts_.at(step_);
  std::optional<Failure> outcome;
  for (const auto& [rank, failure] : answers_.at(step_)) {
    if (failure && (!outcome || failure->rank < outcome->rank)) outcome = failure;
  }
  return outcome;
}

void RollCall::conclude(const std::optional<Failure>& verdict) {
  answers_.erase(answers_.begin(), answers_.upper_bound(step_));
  verdicts_.erase(verdicts_.begin(), verdicts_.upper_bound(step_));
  failures_.erase(failures_.begin(), failures_.upper_bound(step_));
  if (verdict) ++failed_steps_;
  ++step_;
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

void RollCall::give_up(const Failure& failure, std::uint64_t step) {
  over_since_ = over_ ? std::min(over_since_, step) : step;
  if (!over_) over_ = failure;
}

const Failure* RollCall::reason_to_give_up(RankId from) const {
  if (lost_) return &*lost_;
  if (over_) return &*over_;
  return has_departed(from) ? &departures_[from.index()]->words : nullptr;
}

const Failure* RollCall::reason_not_to_settle() const {
  if (lost_) return &*lost_;
  if (over_ && over_since_ <= step_) return &*over_;
  if (departed_ == 0) return nullptr;
  for (const auto& departure : departures_) {
    if (departure && departure->step <= step_) return &departure->words;
  }
  return nullptr;
}

}  // namespace stagecraft

#include "coordinator.h"

#include <algorithm>

#include "standing_text.h"

namespace stagecraft {
namespace {

/// How long other ranks have to say what they wait for.
constexpr Timeout kTimeToAnswer{250};

Wait end_of_step() { return {.is_settling = true, .from = RankId(-1), .tag = {}}; }

}  // namespace

Coordinator::Coordinator(Channel& channel, std::function<std::string()> activity)
    : channel_(channel),
      rank_(channel.rank()),
      ranks_(channel.ranks()),
      activity_(std::move(activity)),
      roll_call_(rank_, ranks_) {}

std::optional<Notice> Coordinator::hear(RankId from, const Notice& notice) {
  const std::lock_guard lock(mutex_);
  if (notice.kind == Notice::Kind::kAsk) {
    return Notice{Notice::Kind::kStanding, roll_call_.step(), notice.about, encode(own_standing())};
  }
  if (notice.kind != Notice::Kind::kStanding) {
    roll_call_.hear(from, notice);
  } else if (const auto inquiry = inquiries_.find(notice.about); inquiry != inquiries_.end()) {
    inquiry->second[from.value] = decode_standing(notice.text);
  }
  return std::nullopt;
}

void Coordinator::tell_all(const Notice& notice) {
  for (int r = 0; r < ranks_; ++r) {
    // A rank that has departed only needs to hear of other departures.
    const bool listens = [&] {
      const std::lock_guard lock(mutex_);
      return notice.kind == Notice::Kind::kDepart || !roll_call_.has_departed(RankId(r));
    }();
    if (RankId(r) != rank_ && listens) channel_.tell(RankId(r), notice);
  }
}

// --- waiting ---

/// Lists a wait in pending_, for other ranks to ask about.
class Coordinator::Registration {
 public:
  Registration(Coordinator& coordinator, const Wait& wait, Clock::time_point begin)
      : coordinator_(coordinator), pending_{wait, begin} {
    pending_.wait.is_main = std::this_thread::get_id() == coordinator_.main_thread_.load();
    const std::lock_guard lock(coordinator_.mutex_);
    coordinator_.given_up_.reset();
    coordinator_.pending_.push_back(&pending_);
  }
  ~Registration() {
    const std::lock_guard lock(coordinator_.mutex_);
    std::erase(coordinator_.pending_, &pending_);
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  Coordinator& coordinator_;
  Pending pending_;
};

/// Waits until `is_done`, which may throw. After the time that `limit` returns, inquires and throws TimeoutError.
template <typename Done, typename Limit>
void Coordinator::wait_until(const Wait& wait, Timeout timeout, const Done& is_done, const Limit& limit) {
  const auto begin = Clock::now();
  const Registration registration(*this, wait, begin);
  while (true) {
    const std::uint64_t seen = channel_.news();
    if (is_done()) return;
    const Clock::time_point until = limit(begin);
    if (Clock::now() >= until && inquire(wait, timeout, is_done)) return;
    channel_.wait_for_news(seen, begin, until);
  }
}

template <typename IsSo>
bool Coordinator::wait_for(Clock::time_point until, const IsSo& is_so) {
  const auto begin = Clock::now();
  while (true) {
    const std::uint64_t seen = channel_.news();
    if (is_so()) return true;
    if (Clock::now() >= until) return false;
    channel_.wait_for_news(seen, begin, until);
  }
}

/// A question to all ranks, and their answers.
class Coordinator::Inquiry {
 public:
  explicit Inquiry(Coordinator& coordinator) : coordinator_(coordinator) {
    const std::lock_guard lock(coordinator_.mutex_);
    number_ = ++coordinator_.last_inquiry_;
    coordinator_.inquiries_[number_][coordinator_.rank_.value] = coordinator_.own_standing();
  }
  ~Inquiry() {
    const std::lock_guard lock(coordinator_.mutex_);
    coordinator_.inquiries_.erase(number_);
  }
  Inquiry(const Inquiry&) = delete;
  Inquiry& operator=(const Inquiry&) = delete;

  [[nodiscard]] std::int32_t number() const { return number_; }
  [[nodiscard]] Answers answers() const {
    const std::lock_guard lock(coordinator_.mutex_);
    return coordinator_.inquiries_.at(number_);
  }
  /// The first rank that has not answered, and has not departed either.
  [[nodiscard]] std::optional<RankId> silent() const {
    const std::lock_guard lock(coordinator_.mutex_);
    const Answers& answers = coordinator_.inquiries_.at(number_);
    for (int r = 0; r < coordinator_.ranks_; ++r) {
      if (!answers.contains(r) && !coordinator_.roll_call_.has_departed(RankId(r))) return RankId(r);
    }
    return std::nullopt;
  }

 private:
  Coordinator& coordinator_;
  std::int32_t number_ = 0;
};

/// Asks all ranks what they wait for and throws TimeoutError. Returns true if `is_done` becomes true meanwhile.
template <typename Done>
bool Coordinator::inquire(const Wait& wait, Timeout timeout, const Done& is_done) {
  const Inquiry inquiry(*this);
  tell_all({Notice::Kind::kAsk, step(), inquiry.number(), {}});
  bool is_late = false;
  (void)wait_for(Clock::now() + kTimeToAnswer, [&] { return (is_late = is_done()) || !inquiry.silent(); });
  if (is_late) return true;
  const Answers answers = inquiry.answers();
  {
    const std::lock_guard lock(mutex_);
    has_timed_out_ = true;
    given_up_ = wait;
    given_up_->purpose = nullptr;
  }
  static const Standing silent{.has_answered = false, .is_resting = false, .waits = {}, .activity = ""};
  throw timeout_error(rank_, ranks_, wait, timeout, [&](RankId rank) -> const Standing& {
    const auto found = answers.find(rank.value);
    return found == answers.end() ? silent : found->second;
  });
}

/// Under the lock.
Standing Coordinator::own_standing() const {
  Standing standing;
  standing.is_resting = is_resting_;
  for (const Pending* pending : pending_) standing.waits.push_back(pending->wait);
  if (given_up_) standing.waits.push_back(*given_up_);
  if (activity_) standing.activity = activity_();
  return standing;
}

std::string Coordinator::pending() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  const auto now = Clock::now();
  for (const Pending* pending : pending_) {
    if (now - pending->begin < std::chrono::milliseconds(1)) continue;
    text += (text.empty() ? "" : ", and for ") + to_text(pending->wait);
  }
  return text;
}

// --- messages ---

Message Coordinator::receive(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose, bool lasting) {
  const std::uint64_t seen = channel_.news();
  std::optional<Message> message = channel_.take(from, tag);
  if (message) return std::move(*message);
  // Most messages come at once: look once more before the others are told of a wait.
  const auto now = Clock::now();
  channel_.wait_for_news(seen, now, now);
  message = channel_.take(from, tag);
  if (message) return std::move(*message);
  const Wait wait{false, from, tag, purpose, true};
  wait_until(
      wait, timeout,
      [&] {
        message = channel_.take(from, tag);
        if (message) return true;
        std::unique_lock lock(mutex_);
        if (!lasting) throw_if_failed_locked();
        const Failure* in_vain = roll_call_.reason_to_give_up(from);
        if (in_vain == nullptr) return false;
        const Failure reason = *in_vain;
        // The rest of a message of no step may never come, and no step's end would tell.
        const bool has_no_hope = lasting && roll_call_.lost().has_value();
        lock.unlock();
        message = channel_.take(from, tag);  // it may have come before the reason
        if (!message && (has_no_hope || !channel_.is_coming(from, tag))) throw_in_vain(reason, wait);
        return message.has_value();
      },
      [&](Clock::time_point begin) -> Clock::time_point { return begin + timeout; });
  return std::move(*message);
}

void Coordinator::throw_if_failed() const {
  const std::lock_guard lock(mutex_);
  throw_if_failed_locked();
}

void Coordinator::throw_if_failed_locked() const {
  const RollCall::Failed* failed = roll_call_.failure();
  if (failed != nullptr) throw AbortedError(failed->failure.message, failed->failure.rank);
}

/// Throws because waiting is useless: the rank's program has ended, some rank has given up, or some process is lost.
void Coordinator::throw_in_vain(const Failure& reason, const Wait& wait) const {
  throw AbortedError(reason.message + "; rank " + std::to_string(rank_.value) + " was waiting for " + to_text(wait),
                     reason.rank);
}

// --- failures and the ends of steps ---

/// Under the lock.
Notice Coordinator::failure_notice(const Failure& failure) const {
  return {has_timed_out_ ? Notice::Kind::kTimeout : Notice::Kind::kAbort, roll_call_.step(), failure.rank.value,
          failure.message};
}

void Coordinator::abort(const Failure& failure) {
  Notice notice;
  {
    const std::lock_guard lock(mutex_);
    if (!roll_call_.add_failure(failure, has_timed_out_)) return;
    notice = failure_notice(failure);
  }
  tell_all(notice);
  channel_.wake();
}

void Coordinator::give_up(const Failure& failure, const std::function<void()>& before_telling) {
  const Failure known{failure.rank.value < 0 ? rank_ : failure.rank, failure.message};
  std::vector<Notice> notices;
  {
    const std::lock_guard lock(mutex_);
    if (roll_call_.add_failure(known, has_timed_out_)) notices.push_back(failure_notice(known));
    if (!roll_call_.is_over()) {
      roll_call_.give_up(known, roll_call_.step());
      notices.push_back({Notice::Kind::kGiveUp, roll_call_.step(), known.rank.value, known.message});
    }
  }
  channel_.wake();
  if (before_telling) before_telling();
  for (const Notice& notice : notices) tell_all(notice);
}

/// When `settle` stops waiting: after the timeout; but soon after some wait of this step has timed out.
Coordinator::Clock::time_point Coordinator::end_of_patience(Clock::time_point begin, Timeout timeout) const {
  const std::lock_guard lock(mutex_);
  const RollCall::Failed* failed = roll_call_.failure();
  if (failed == nullptr || !failed->by_timeout) return begin + timeout;
  return std::min<Clock::time_point>(begin + timeout, std::max(begin, failed->heard) + kPatienceAfterTimeout);
}

/// Concludes the step if the verdict is known, or on rank 0 if all ranks have answered. Returns whether it did.
bool Coordinator::is_settled(std::optional<Failure>& outcome) {
  std::optional<Notice> verdict;
  std::uint64_t next = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!roll_call_.is_complete()) return false;
    outcome = roll_call_.verdict();
    if (roll_call_.is_root()) {
      verdict = Notice{Notice::Kind::kVerdict, roll_call_.step(), outcome ? outcome->rank.value : -1,
                       outcome ? outcome->message : ""};
    }
    roll_call_.conclude(outcome);
    next = roll_call_.step();
    step_ = next;
    has_timed_out_ = false;
  }
  if (verdict) tell_all(*verdict);
  channel_.end_step(next, outcome.has_value());
  return true;
}

std::optional<Failure> Coordinator::settle(Timeout timeout) {
  main_thread_ = std::this_thread::get_id();
  std::optional<Notice> answer;
  {
    const std::lock_guard lock(mutex_);
    const std::optional<Failure> own = roll_call_.answer();
    if (!roll_call_.is_root()) {
      answer = Notice{Notice::Kind::kSettle, roll_call_.step(), own ? own->rank.value : -1, own ? own->message : ""};
    }
  }
  if (answer) channel_.tell(RollCall::kRoot, *answer);
  const Wait wait = end_of_step();
  const auto begin = Clock::now();
  std::optional<Failure> outcome;
  wait_until(
      wait, timeout,
      [&] {
        if (is_settled(outcome)) return true;
        std::unique_lock lock(mutex_);
        if (const Failure* in_vain = roll_call_.reason_not_to_settle()) {
          const Failure reason = *in_vain;
          lock.unlock();
          throw_in_vain(reason, wait);
        }
        lock.unlock();
        if (Clock::now() >= end_of_patience(begin, timeout)) throw_if_failed();
        return false;
      },
      [&](Clock::time_point) { return end_of_patience(begin, timeout); });
  return outcome;
}

std::optional<Failure> Coordinator::over() const {
  const std::lock_guard lock(mutex_);
  return roll_call_.over();
}

std::uint64_t Coordinator::failed_steps() const {
  const std::lock_guard lock(mutex_);
  return roll_call_.failed_steps();
}

// --- the ends of ranks ---

void Coordinator::depart(const std::optional<std::string>& failure) {
  tell_all({Notice::Kind::kDepart, step(), failure ? rank_.value : -1,
            failure ? *failure : "rank " + std::to_string(rank_.value) + " has ended its program"});
}

bool Coordinator::all_others_departed() const {
  const std::lock_guard lock(mutex_);
  return roll_call_.all_others_departed();
}

void Coordinator::wait_for_departures(Timeout patience) {
  const auto is_through = [&] {
    const std::lock_guard lock(mutex_);
    return roll_call_.all_others_departed() || roll_call_.failed_departure() || roll_call_.lost();
  };
  while (!wait_for(Clock::now() + patience / 2, is_through)) {
    const Inquiry inquiry(*this);
    tell_all({Notice::Kind::kAsk, step(), inquiry.number(), {}});
    const auto have_answered = [&] { return is_through() || !inquiry.silent(); };
    if (wait_for(Clock::now() + patience, have_answered)) continue;
    const std::optional<RankId> silent = inquiry.silent();
    if (!silent) continue;
    const double seconds = std::chrono::duration<double>(patience).count();
    lose(*silent, "rank " + std::to_string(silent->value) + " has not answered for " +
                      std::to_string(seconds).substr(0, 5) + " s, while others wait for the end of its program");
  }
}

std::optional<Failure> Coordinator::failed_departure() const {
  const std::lock_guard lock(mutex_);
  return roll_call_.failed_departure();
}

void Coordinator::lose(RankId rank, const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    roll_call_.lose(rank, text);
  }
  channel_.wake();
}

std::optional<Failure> Coordinator::lost() const {
  const std::lock_guard lock(mutex_);
  return roll_call_.lost();
}

bool Coordinator::is_stuck() const {
  const std::lock_guard lock(mutex_);
  const RollCall::Failed* failed = roll_call_.failure();
  return has_timed_out_ || (failed != nullptr && failed->by_timeout);
}

}  // namespace stagecraft

// How a rank waits: for messages and for the ends of steps, and what it finds out when a wait lasts too long.

#include <algorithm>

#include "engine.h"
#include "mpi_call.h"
#include "standing_text.h"

namespace stagecraft::mpi {
namespace {

using Clock = std::chrono::steady_clock;

/// How much of what has been sent is looked at in one round. It takes nobody's time while a rank waits for something
/// else, and what is sent in one step is looked at often enough to be released soon.
constexpr std::size_t kSendsPerRound = 8;
/// How long other ranks have to say what they wait for.
constexpr Timeout kTimeToAnswer{250};

/// A message often comes within microseconds, so a waiting rank looks often, but soon lets others have the core; later
/// it sleeps, the longer the longer nothing has come. A message that is on its way may need every look to move on.
void pause(Clock::duration waited, bool is_moving, bool has_own_core) {
  using namespace std::chrono_literals;
  if (has_own_core && waited < 30us) return;
  if (waited < (is_moving ? 1s : 2ms)) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::min<Clock::duration>(waited / 40, 1ms));
  }
}

}  // namespace

Message Engine::receive(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose) {
  check_rank(from);
  std::optional<Message> message;
  const Wait wait{false, from, tag, purpose, true};
  wait_until(
      wait, timeout,
      [&] {
        message = take(from, tag);
        if (message) return true;
        if (const auto* failed = roll_call_.failure())
          throw AbortedError(failed->failure.message, failed->failure.rank);
        if (find(from, tag) == arrivals_.end()) give_up_because(roll_call_.reason_to_give_up(from), wait);
        return false;
      },
      [&](Clock::time_point begin) { return begin + timeout; });
  return std::move(*message);
}

/// Looks until `is_done`, which may throw, or until the time that `limit` gives.
template <typename Done, typename Limit>
void Engine::wait_until(Wait wait, Timeout timeout, const Done& is_done, const Limit& limit) {
  const auto begin = Clock::now();
  wait.is_main = std::this_thread::get_id() == main_thread_.load();
  std::unique_lock lock(mutex_);
  given_up_.reset();
  const auto pending = pending_.insert(pending_.end(), {wait, begin});
  struct Forget {
    std::list<Pending>& all;
    std::list<Pending>::iterator own;
    ~Forget() { all.erase(own); }  // under the lock
  } const forget{pending_, pending};
  while (true) {
    const bool is_moving = progress();
    if (is_done()) return;
    const auto now = Clock::now();
    if (now >= limit(begin) && inquire(lock, wait, timeout, is_done)) return;
    lock.unlock();
    pause(now - begin, is_moving, has_own_core_);
    lock.lock();
  }
}

/// Asks all ranks what they wait for, and throws the error that follows. Returns true if what is waited for comes
/// meanwhile.
template <typename Done>
bool Engine::inquire(std::unique_lock<std::mutex>& lock, const Wait& wait, Timeout timeout, const Done& is_done) {
  const std::int32_t question = ++last_inquiry_;
  auto& answers = inquiries_[question];
  struct Forget {
    decltype(inquiries_)& all;
    std::int32_t own;
    ~Forget() { all.erase(own); }  // under the lock
  } const forget{inquiries_, question};
  answers[rank_.value] = own_standing();
  tell_all(Kind::kAsk, Failure{RankId(question), ""});
  const auto begin = Clock::now();
  while (static_cast<int>(answers.size()) + roll_call_.departed() < ranks_ && Clock::now() - begin < kTimeToAnswer) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    lock.lock();
    progress();
    if (is_done()) return true;
  }
  has_timed_out_ = true;
  given_up_ = wait;
  static const Standing silent{.has_answered = false, .is_resting = false, .waits = {}, .activity = ""};
  throw timeout_error(rank_, ranks_, wait, timeout, [&](RankId rank) -> const Standing& {
    const auto found = answers.find(rank.value);
    return found == answers.end() ? silent : found->second;
  });
}

Standing Engine::own_standing() const {
  Standing standing;
  standing.is_resting = is_resting_;
  for (const Pending& pending : pending_) standing.waits.push_back(pending.wait);
  if (given_up_) standing.waits.push_back(*given_up_);
  if (activity_) standing.activity = activity_();
  return standing;
}

/// A rank's program has ended, or some process is lost: waiting any longer would be in vain.
void Engine::give_up_because(const Failure* reason, const Wait& wait) const {
  if (reason == nullptr) return;
  throw AbortedError(
      reason->message + "; rank " + std::to_string(rank_.value) + " was waiting for " + stagecraft::to_text(wait),
      reason->rank);
}

// --- moving on ---

Engine::Load Engine::progress_if_free() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return Load::kMoving;
  if (is_closed_) return Load::kIdle;
  if (progress() || !outgoing_.empty()) return Load::kMoving;
  return wanted_.empty() ? Load::kIdle : Load::kWaiting;
}

bool Engine::progress(bool thoroughly) {
  // What has been sent goes first: its memory, still in the cache, can take what arrives.
  progress_sends(thoroughly ? outgoing_.size() : kSendsPerRound);
  progress_envelopes();
  progress_drops();
  for (std::size_t i = 0; i < moving_.size();) {
    const auto arrival = moving_[i];
    if (!move_on(arrival)) {
      ++i;
      continue;
    }
    std::swap(moving_[i], moving_.back());
    moving_.pop_back();
    finish_receiving(arrival);
  }
  return !moving_.empty() || !drops_.empty();
}

/// In turn: those that were not done go to the end of the line.
void Engine::progress_sends(std::size_t most) {
  for (std::size_t looked = std::min(most, outgoing_.size()); looked > 0; --looked) {
    const auto first = outgoing_.begin();
    if (!first->started && all_happened(first->written)) start_sending(*first);
    if (first->started && all_done(first->requests)) {
      outgoing_.erase(first);
    } else {
      outgoing_.splice(outgoing_.end(), outgoing_, first);
    }
  }
}

void Engine::progress_envelopes() {
  while (true) {
    Slot& slot = slots_[next_slot_];
    int done = 0;
    MPI_Status status;
    check(MPI_Test(&slot.request, &done, &status), "MPI_Test");
    if (done == 0) return;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    Envelope envelope = decode({slot.buffer.data(), static_cast<std::size_t>(bytes)});
    receive_envelope(slot);
    next_slot_ = (next_slot_ + 1) % slots_.size();
    arrive(RankId(status.MPI_SOURCE), std::move(envelope));
  }
}

void Engine::hear(RankId from, const Envelope& envelope) {
  if (envelope.kind == Kind::kAsk) {
    tell(from, Kind::kStanding, envelope.about, encode(own_standing()));
  } else if (envelope.kind == Kind::kStanding) {
    const auto inquiry = inquiries_.find(envelope.about);
    if (inquiry != inquiries_.end()) inquiry->second[from.value] = decode_standing(envelope.header);
  } else {
    roll_call_.hear(from, envelope);
  }
}

// --- failures and the ends of steps ---

void Engine::abort(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (roll_call_.add_failure(failure, has_timed_out_)) {
    tell_all(has_timed_out_ ? Kind::kTimeout : Kind::kAbort, failure);
  }
}

std::optional<Failure> Engine::settle(Timeout timeout) {
  main_thread_ = std::this_thread::get_id();
  {
    const std::lock_guard lock(mutex_);
    const std::optional<Failure> own = roll_call_.answer();
    if (!roll_call_.is_root()) {
      tell(RollCall::kRoot, Kind::kSettle, own ? own->rank.value : -1, own ? own->message : "");
      progress();
    }
  }
  const Wait wait{.is_settling = true, .from = RankId(-1), .tag = {}};
  const auto limit = [&](Clock::time_point begin) -> Clock::time_point {
    const auto* failed = roll_call_.failure();
    if (failed == nullptr || !failed->by_timeout) return begin + timeout;
    return std::min<Clock::time_point>(begin + timeout, std::max(begin, failed->heard) + kPatienceAfterTimeout);
  };
  const auto begin = Clock::now();
  std::optional<Failure> outcome;
  wait_until(
      wait, timeout,
      [&] {
        if (roll_call_.is_complete()) {
          outcome = roll_call_.verdict();
          if (roll_call_.is_root()) tell_all(Kind::kVerdict, outcome);
          roll_call_.conclude(outcome);
          has_timed_out_ = false;
          if (outcome) drop_left_over();
          progress(/*thoroughly=*/true);
          return true;
        }
        give_up_because(roll_call_.reason_not_to_settle(), wait);
        const auto* failed = roll_call_.failure();
        if (failed != nullptr && Clock::now() >= limit(begin)) {
          throw AbortedError(failed->failure.message, failed->failure.rank);
        }
        return false;
      },
      limit);
  return outcome;
}

void Engine::give_up(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  const Failure known{failure.rank.value < 0 ? rank_ : failure.rank, failure.message};
  if (roll_call_.add_failure(known, has_timed_out_)) {
    tell_all(has_timed_out_ ? Kind::kTimeout : Kind::kAbort, known);
  }
  if (roll_call_.is_over()) return;
  roll_call_.give_up(known);
  tell_all(Kind::kGiveUp, known);
}

std::optional<Failure> Engine::over() const {
  const std::lock_guard lock(mutex_);
  return roll_call_.over();
}

void Engine::depart(bool failed, const std::string& message) {
  const std::lock_guard lock(mutex_);
  tell_all(Kind::kDepart, Failure{failed ? rank_ : RankId(-1), message});
}

bool Engine::all_departed() {
  const std::lock_guard lock(mutex_);
  progress(/*thoroughly=*/true);
  return roll_call_.all_others_departed() && outgoing_.empty() && drops_.empty();
}

std::optional<Failure> Engine::failed_departure() {
  const std::lock_guard lock(mutex_);
  return roll_call_.failed_departure();
}

void Engine::mark_lost(RankId rank, const std::string& text) {
  const std::lock_guard lock(mutex_);
  roll_call_.lose(rank, text);
}

std::optional<Failure> Engine::lost() {
  const std::lock_guard lock(mutex_);
  return roll_call_.lost();
}

bool Engine::is_stuck() {
  const std::lock_guard lock(mutex_);
  const auto* failed = roll_call_.failure();
  return has_timed_out_ || (failed != nullptr && failed->by_timeout);
}

std::string Engine::pending() {
  const std::lock_guard lock(mutex_);
  std::string text;
  const auto now = Clock::now();
  for (const Pending& pending : pending_) {
    if (now - pending.begin < std::chrono::milliseconds(1)) continue;
    text += (text.empty() ? "" : ", and for ") + stagecraft::to_text(pending.wait);
  }
  return text;
}

std::uint64_t Engine::failed_steps() const {
  const std::lock_guard lock(mutex_);
  return roll_call_.failed_steps();
}

}  // namespace stagecraft::mpi

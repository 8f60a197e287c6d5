// Progress of messages: while a rank waits, and by a helper thread while it computes.

#include <algorithm>
#include <thread>

#include "mpi_call.h"
#include "mpi_channel.h"

namespace stagecraft::mpi {
namespace {

using Clock = std::chrono::steady_clock;

/// Sends that are checked in one round: few enough not to delay a waiting rank, enough to release their memory soon.
constexpr std::size_t kSendsPerRound = 8;

/// Pauses a waiting rank between two checks. A message often comes within microseconds: at first the rank spins on its
/// own core, then yields, then sleeps, up to 1 ms. While a message is being received it yields for longer, because the
/// transfer may need the checks to progress.
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

std::uint64_t MpiChannel::news() {
  const std::lock_guard lock(mutex_);
  is_moving_ = progress();
  return 0;  // not counted: waits poll
}

void MpiChannel::wait_for_news(std::uint64_t /*seen*/, Clock::time_point since, Clock::time_point /*until*/) {
  pause(Clock::now() - since, is_moving_, has_own_core_);
}

MpiChannel::Load MpiChannel::progress_if_free() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return Load::kMoving;
  if (is_closed_) return Load::kIdle;
  if (progress() || !outgoing_.empty()) return Load::kMoving;
  return wanted_.empty() ? Load::kIdle : Load::kWaiting;
}

bool MpiChannel::progress(bool thoroughly) {
  // Sends first: memory that they release is in the cache, and can be reused for what arrives.
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

/// Round robin: sends that are not done go to the end of the list.
void MpiChannel::progress_sends(std::size_t most) {
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

void MpiChannel::progress_envelopes() {
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

/// The listener calls no channel, so it may be called under the lock.
void MpiChannel::hear(RankId from, const Envelope& envelope) {
  const std::optional<Notice> answer =
      listener_(from, {*envelope.notice, envelope.step, envelope.about, envelope.header});
  if (answer) dispatch(from, *answer);
}

bool MpiChannel::is_done() {
  const std::lock_guard lock(mutex_);
  progress(/*thoroughly=*/true);
  return outgoing_.empty() && drops_.empty();
}

}  // namespace stagecraft::mpi

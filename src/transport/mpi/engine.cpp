#include "engine.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <unistd.h>

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <cstring>
#include <thread>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"
#include "waiting.h"

namespace stagecraft::mpi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kEnvelopeTag = 0;
constexpr int kFirstBlobTag = 1;
constexpr std::size_t kSlots = 16;
constexpr std::int64_t kChunk = std::int64_t{1} << 30;  // MPI counts in int

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw TransportError(std::string(call) + " failed: " + std::string(text, static_cast<std::size_t>(length)),
                       RankId(-1));
}

bool all_done(std::vector<MPI_Request>& requests) {
  int done = 0;
  check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
  return done != 0;
}

bool all_happened(const std::vector<c10::Event>& events) {
  return std::all_of(events.begin(), events.end(), [](const c10::Event& event) { return event.query(); });
}

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

int rank_in(MPI_Comm communicator) {
  int rank = 0;
  MPI_Comm_rank(communicator, &rank);
  return rank;
}

int size_of(MPI_Comm communicator) {
  int size = 0;
  MPI_Comm_size(communicator, &size);
  return size;
}

bool takes_device_memory() {
#if defined(MPIX_CUDA_AWARE_SUPPORT) && MPIX_CUDA_AWARE_SUPPORT
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

}  // namespace

Engine::Engine(MPI_Comm communicator, std::optional<at::Device> device, bool has_own_core)
    : communicator_(communicator),
      device_(device),
      rank_(rank_in(communicator)),
      ranks_(size_of(communicator)),
      has_own_core_(has_own_core),
      roll_call_(rank_, ranks_) {
  void* bound = nullptr;
  int found = 0;
  MPI_Comm_get_attr(communicator_, MPI_TAG_UB, &bound, &found);
  largest_tag_ = found != 0 ? *static_cast<int*>(bound) : 32767;
  device_is_direct_ = device_ && !device_->is_cpu() && takes_device_memory();
  if (device_ && !device_->is_cpu()) copy_stream_ = new_stream(*device_);
  sent_.assign(static_cast<std::size_t>(ranks_), 0);
  slots_.resize(kSlots);
  for (Slot& slot : slots_) {
    slot.buffer.resize(kEnvelopeBytes);
    check(MPI_Irecv(slot.buffer.data(), static_cast<int>(kEnvelopeBytes), MPI_BYTE, MPI_ANY_SOURCE, kEnvelopeTag,
                    communicator_, &slot.request),
          "MPI_Irecv");
  }
}

Engine::~Engine() { close(); }

void Engine::close() {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return;
  is_closed_ = true;
  for (Slot& slot : slots_) {
    MPI_Cancel(&slot.request);
    MPI_Request_free(&slot.request);
  }
}

void Engine::check_rank(RankId rank) const {
  if (rank.value < 0 || rank.value >= ranks_) throw no_such_rank(rank, ranks_);
}

// Messages from one rank to another are matched in the order of their tags' reuse, so a tag may come round again: it
// would take as many messages in flight as there are tags for two of them to meet.
int Engine::mpi_tag_of(std::uint64_t sequence) const {
  return kFirstBlobTag + static_cast<int>(sequence % static_cast<std::uint64_t>(largest_tag_ - kFirstBlobTag));
}

// --- sending ---

void Engine::send(RankId to, const Tag& tag, Message message) {
  check_rank(to);
  const std::lock_guard lock(mutex_);
  Envelope envelope;
  envelope.tag = tag;
  envelope.header = std::move(message.header);
  post(to, std::move(envelope), std::move(message));
  progress();
}

void Engine::post(RankId to, Envelope envelope, Message message) {
  envelope.step = roll_call_.step();
  envelope.sequence = sent_[to.index()]++;
  for (at::Tensor& tensor : message.tensors) {
    if (tensor.defined() && !tensor.is_contiguous()) {
      tensor = tensor.detach().contiguous().set_requires_grad(tensor.requires_grad());
    }
  }
  Outgoing& outgoing = outgoing_.emplace_back();
  outgoing.to = to;
  outgoing.mpi_tag = mpi_tag_of(envelope.sequence);
  outgoing.envelope = encode(envelope, message.tensors);
  if (envelope.header_blob > 0) {
    Blob& blob = outgoing.blobs.emplace_back();
    blob.text = std::move(envelope.header);
    blob.bytes = static_cast<std::int64_t>(blob.text.size());
  }
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    const TensorForm& form = envelope.forms[i];
    if (!form.is_defined || form.is_inline) continue;
    Blob& blob = outgoing.blobs.emplace_back();
    blob.memory = message.tensors[i].detach();
    blob.bytes = form.bytes();
    if (blob.memory.is_cpu()) continue;
    const at::Device where = blob.memory.device();
    if (device_is_direct_) {
      outgoing.written.emplace_back(where.type()).record(current_stream(where));
      continue;
    }
    // To the host beside what the rank computes, and from there when it has arrived.
    if (!copy_stream_) copy_stream_ = new_stream(where);
    run_after(*copy_stream_, current_stream(where));
    const c10::StreamGuard guard(*copy_stream_);
    const at::Tensor host = at::empty(blob.memory.sizes(), blob.memory.options().device(at::kCPU).pinned_memory(true));
    host.copy_(blob.memory, /*non_blocking=*/true);
    c10::impl::VirtualGuardImpl(where.type()).recordDataPtrOnStream(blob.memory.storage().data_ptr(), *copy_stream_);
    outgoing.written.emplace_back(where.type()).record(*copy_stream_);
    blob.memory = host;
  }
  outgoing.requests.emplace_back();
  check(MPI_Isend(outgoing.envelope.data(), static_cast<int>(outgoing.envelope.size()), MPI_BYTE, to.value,
                  kEnvelopeTag, communicator_, &outgoing.requests.back()),
        "MPI_Isend");
  if (outgoing.written.empty()) start_sending(outgoing);
}

void Engine::start_sending(Outgoing& outgoing) {
  outgoing.started = true;
  outgoing.written.clear();
  for (Blob& blob : outgoing.blobs) {
    blob.data = blob.memory.defined() ? static_cast<char*>(blob.memory.data_ptr()) : blob.text.data();
    for (std::int64_t at = 0; at < blob.bytes; at += kChunk) {
      check(MPI_Isend(blob.data + at, static_cast<int>(std::min(kChunk, blob.bytes - at)), MPI_BYTE, outgoing.to.value,
                      outgoing.mpi_tag, communicator_, &outgoing.requests.emplace_back()),
            "MPI_Isend");
    }
  }
}

void Engine::tell_all(Kind kind, const std::optional<Failure>& failure) {
  for (int r = 0; r < ranks_; ++r) {
    // Who has left does not listen any more, except for the others leaving too.
    if (RankId(r) == rank_ || (kind != Kind::kDepart && roll_call_.has_departed(RankId(r)))) continue;
    Envelope envelope;
    envelope.kind = kind;
    if (failure) {
      envelope.about = failure->rank.value;
      envelope.header = failure->message;
    }
    post(RankId(r), std::move(envelope), {});
  }
  progress();
}

// --- receiving ---

void Engine::post_receive(RankId from, const Tag& tag) {
  check_rank(from);
  const std::lock_guard lock(mutex_);
  Incoming* here = find(from, tag);
  if (here == nullptr) {
    wanted_.insert({from, tag});
  } else if (!here->started) {
    start_receiving(*here);
  }
}

/// Of a step that failed: nobody will want it.
bool Engine::is_left_over(const Envelope& envelope) const {
  return envelope.kind == Kind::kData && roll_call_.has_failed(envelope.step);
}

Engine::Incoming* Engine::find(RankId from, const Tag& tag) {
  for (Incoming& incoming : incoming_) {
    const Envelope& envelope = incoming.envelope;
    if (incoming.from == from && envelope.kind == Kind::kData && envelope.tag == tag && !is_left_over(envelope)) {
      return &incoming;
    }
  }
  return nullptr;
}

void Engine::arrive(RankId from, Envelope envelope) {
  Incoming& incoming = incoming_.emplace_back();
  incoming.from = from;
  incoming.envelope = std::move(envelope);
  const Envelope& sent = incoming.envelope;
  const bool has_blobs =
      sent.header_blob > 0 || std::any_of(sent.forms.begin(), sent.forms.end(),
                                          [](const auto& form) { return form.is_defined && !form.is_inline; });
  // What is left over is taken too, so that its sender gets rid of it.
  const bool is_wanted = sent.kind == Kind::kData && !is_left_over(sent) && wanted_.erase({from, sent.tag}) > 0;
  if (!has_blobs || sent.kind != Kind::kData || is_left_over(sent) || is_wanted) start_receiving(incoming);
}

void Engine::start_receiving(Incoming& incoming) {
  incoming.started = true;
  const char* inline_data = incoming.envelope.inline_bytes.data();
  for (const TensorForm& form : incoming.envelope.forms) {
    if (!form.is_defined) {
      incoming.tensors.emplace_back();
      continue;
    }
    const bool lands_on_device = device_is_direct_ && !form.is_inline;
    const bool is_staged = device_ && !device_->is_cpu() && !form.is_inline && !lands_on_device;
    at::TensorOptions options = at::TensorOptions().dtype(form.type);
    if (lands_on_device) options = options.device(*device_);
    if (is_staged) options = options.pinned_memory(true);
    const bool is_large =
        !lands_on_device && !is_staged && form.bytes() > static_cast<std::int64_t>(RecycledMemory::kSmallest);
    const at::Tensor tensor = is_large ? memory_.empty(form.sizes, form.type) : at::empty(form.sizes, options);
    if (form.is_inline) {
      if (form.bytes() > 0) std::memcpy(tensor.data_ptr(), inline_data, static_cast<std::size_t>(form.bytes()));
      inline_data += form.bytes();
    }
    if (lands_on_device) incoming.free.emplace_back(device_->type()).record(current_stream(*device_));
    incoming.tensors.push_back(tensor);
  }
  if (incoming.free.empty()) issue_receives(incoming);
}

void Engine::issue_receives(Incoming& incoming) {
  incoming.issued = true;
  incoming.free.clear();
  Envelope& envelope = incoming.envelope;
  const int tag = mpi_tag_of(envelope.sequence);
  const auto receive_into = [&](char* data, std::int64_t bytes) {
    for (std::int64_t at = 0; at < bytes; at += kChunk) {
      check(MPI_Irecv(data + at, static_cast<int>(std::min(kChunk, bytes - at)), MPI_BYTE, incoming.from.value, tag,
                      communicator_, &incoming.requests.emplace_back()),
            "MPI_Irecv");
    }
  };
  if (envelope.header_blob > 0) {
    envelope.header.resize(envelope.header_blob);
    receive_into(envelope.header.data(), static_cast<std::int64_t>(envelope.header_blob));
  }
  for (std::size_t i = 0; i < envelope.forms.size(); ++i) {
    const TensorForm& form = envelope.forms[i];
    if (form.is_defined && !form.is_inline) {
      receive_into(static_cast<char*>(incoming.tensors[i].data_ptr()), form.bytes());
    }
  }
  if (incoming.requests.empty()) complete(incoming);
}

void Engine::complete(Incoming& incoming) {
  incoming.is_complete = true;
  if (incoming.envelope.kind != Kind::kData) roll_call_.hear(incoming.from, incoming.envelope);
}

std::optional<Message> Engine::take(RankId from, const Tag& tag) {
  Incoming* here = find(from, tag);
  if (here == nullptr) {
    wanted_.insert({from, tag});
    return std::nullopt;
  }
  if (!here->started) start_receiving(*here);
  if (!here->is_complete) return std::nullopt;
  Incoming incoming = std::move(*here);
  incoming_.remove_if([&](const Incoming& other) { return &other == here; });
  return handed_over(std::move(incoming));
}

Message Engine::handed_over(Incoming incoming) const {
  Message message{std::move(incoming.tensors), std::move(incoming.envelope.header)};
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    at::Tensor& tensor = message.tensors[i];
    if (!tensor.defined()) continue;
    if (device_ && tensor.device() != *device_) tensor = tensor.to(*device_, /*non_blocking=*/true);
    if (incoming.envelope.forms[i].wants_gradient) tensor.set_requires_grad(true);
  }
  return message;
}

Message Engine::receive(RankId from, const Tag& tag, Timeout timeout) {
  check_rank(from);
  std::optional<Message> message;
  wait_until(
      [&] {
        message = take(from, tag);
        if (message) return true;
        if (const Failure* failure = roll_call_.failure()) throw AbortedError(failure->message, failure->rank);
        if (find(from, tag) == nullptr) give_up_if_gone(from, [&] { return message_text(from, tag); });
        return false;
      },
      timeout, [&] { return message_text(from, tag); }, [&] { return message_timeout(rank_, from, tag, timeout); });
  return std::move(*message);
}

/// Looks until `is_done`, which may throw. Words are found only for a wait that is worth them.
template <typename Done, typename What, typename TimedOut>
void Engine::wait_until(const Done& is_done, Timeout timeout, const What& what, const TimedOut& timed_out) {
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  const auto pending = pending_.emplace(pending_.end());
  struct Forget {
    std::list<std::string>& all;
    std::list<std::string>::iterator own;
    ~Forget() { all.erase(own); }  // under the lock
  } const forget{pending_, pending};
  while (true) {
    const bool is_moving = progress();
    if (is_done()) break;
    const auto waited = Clock::now() - begin;
    if (pending->empty() && waited > std::chrono::milliseconds(1)) *pending = what();
    if (waited > timeout) throw timed_out();
    lock.unlock();
    pause(waited, is_moving, has_own_core_);
    lock.lock();
  }
}

/// A rank's program has ended, or some process is lost: waiting any longer would be in vain.
template <typename What>
void Engine::give_up_if_gone(RankId from, const What& what) const {
  const Failure* reason = roll_call_.reason_to_give_up(from);
  if (reason == nullptr) return;
  throw AbortedError(reason->message + "; rank " + std::to_string(rank_.value) + " was waiting for " + what(),
                     reason->rank);
}

// --- moving on ---

bool Engine::progress_if_free() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return !lock || (!is_closed_ && (progress() || !outgoing_.empty()));
}

bool Engine::progress() {
  // What has been sent goes first: its memory, still in the cache, can take what arrives.
  for (auto it = outgoing_.begin(); it != outgoing_.end();) {
    if (!it->started && all_happened(it->written)) start_sending(*it);
    it = it->started && all_done(it->requests) ? outgoing_.erase(it) : std::next(it);
  }
  progress_envelopes();
  bool is_receiving = false;
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    if (it->started && !it->issued && all_happened(it->free)) issue_receives(*it);
    if (it->issued && !it->is_complete && all_done(it->requests)) complete(*it);
    is_receiving |= it->started && !it->is_complete;
    const bool is_unwanted = it->envelope.kind != Kind::kData || is_left_over(it->envelope);
    if (is_unwanted && !it->started) start_receiving(*it);
    it = is_unwanted && it->is_complete ? incoming_.erase(it) : std::next(it);
  }
  return is_receiving;
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
    check(MPI_Irecv(slot.buffer.data(), static_cast<int>(kEnvelopeBytes), MPI_BYTE, MPI_ANY_SOURCE, kEnvelopeTag,
                    communicator_, &slot.request),
          "MPI_Irecv");
    next_slot_ = (next_slot_ + 1) % slots_.size();
    arrive(RankId(status.MPI_SOURCE), std::move(envelope));
  }
}

// --- failures and the ends of steps ---

void Engine::abort(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (roll_call_.add_failure(failure)) tell_all(Kind::kAbort, failure);
}

std::optional<Failure> Engine::settle(Timeout timeout) {
  {
    const std::lock_guard lock(mutex_);
    tell_all(Kind::kSettle, roll_call_.answer());
  }
  const auto what = [&] { return step_end_text(roll_call_.missing()); };
  std::optional<Failure> outcome;
  wait_until(
      [&] {
        if (!roll_call_.is_complete()) {
          for (const RankId rank : roll_call_.missing()) give_up_if_gone(rank, what);
          return false;
        }
        outcome = roll_call_.conclude();
        if (outcome) wanted_.clear();
        progress();
        return true;
      },
      timeout, what, [&] { return step_end_timeout(rank_, roll_call_.missing(), timeout); });
  return outcome;
}

void Engine::depart(bool failed, const std::string& message) {
  const std::lock_guard lock(mutex_);
  tell_all(Kind::kDepart, Failure{failed ? rank_ : RankId(-1), message});
}

bool Engine::all_departed() {
  const std::lock_guard lock(mutex_);
  progress();
  return roll_call_.all_others_departed() && outgoing_.empty();
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

std::string Engine::pending() {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const std::string& one : pending_) {
    if (!one.empty()) text += (text.empty() ? "" : ", and for ") + one;
  }
  return text;
}

std::uint64_t Engine::failed_steps() const {
  const std::lock_guard lock(mutex_);
  return roll_call_.failed_steps();
}

}  // namespace stagecraft::mpi

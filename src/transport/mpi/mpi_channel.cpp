#include "mpi_channel.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <unistd.h>

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <cstring>
#include <utility>

#include "mpi_call.h"
#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"
#include "tensor_kinds.h"
#include "wire/out_of_memory.h"

namespace stagecraft::mpi {
namespace {

constexpr int kEnvelopeTag = 0;
constexpr int kFirstBlobTag = 1;
constexpr std::size_t kSlots = 16;
// Size of the pieces that a blob is sent in: MPI counts in int, and dropped pieces share one buffer of this size.
constexpr std::int64_t kChunk = std::int64_t{64} << 20;

/// Calls `piece(offset, size)` for each piece of a blob of this many bytes.
template <typename Piece>
void for_each_piece(std::int64_t bytes, const Piece& piece) {
  for (std::int64_t at = 0; at < bytes; at += kChunk) piece(at, std::min(kChunk, bytes - at));
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

MpiChannel::MpiChannel(MPI_Comm communicator, std::optional<at::Device> device, bool has_own_core)
    : communicator_(communicator),
      device_(device),
      rank_(rank_in(communicator)),
      ranks_(size_of(communicator)),
      has_own_core_(has_own_core) {
  void* bound = nullptr;
  int found = 0;
  MPI_Comm_get_attr(communicator_, MPI_TAG_UB, &bound, &found);
  largest_tag_ = found != 0 ? *static_cast<int*>(bound) : 32767;
  device_is_direct_ = device_ && !device_->is_cpu() && takes_device_memory();
  if (device_ && !device_->is_cpu()) copy_streams_.push_back(new_stream(*device_));
  sent_.assign(static_cast<std::size_t>(ranks_), 0);
  described_.resize(sent_.size());
  known_.resize(sent_.size());
  dropped_.reset(new char[kChunk]);  // not touched, so it takes no memory before it is used
  slots_.resize(kSlots);
  for (Slot& slot : slots_) {
    slot.buffer.resize(kEnvelopeBytes);
    receive_envelope(slot);
  }
}

void MpiChannel::receive_envelope(Slot& slot) {
  check(MPI_Irecv(slot.buffer.data(), static_cast<int>(kEnvelopeBytes), MPI_BYTE, MPI_ANY_SOURCE, kEnvelopeTag,
                  communicator_, &slot.request),
        "MPI_Irecv");
}

MpiChannel::~MpiChannel() { close(); }

void MpiChannel::close() {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return;
  is_closed_ = true;
  for (Slot& slot : slots_) {
    MPI_Cancel(&slot.request);
    MPI_Request_free(&slot.request);
  }
}

void MpiChannel::listen(Listener listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

// Tags are reused in turn. Two messages between the same ranks would share a tag only with as many messages in flight
// as there are tags, and MPI matches messages of one tag in order.
int MpiChannel::mpi_tag_of(std::uint64_t sequence) const {
  return kFirstBlobTag + static_cast<int>(sequence % static_cast<std::uint64_t>(largest_tag_ - kFirstBlobTag));
}

// --- sending ---

void MpiChannel::send(RankId to, const Tag& tag, Message message, std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  Envelope envelope;
  envelope.step = step;
  envelope.tag = tag;
  envelope.header = std::move(message.header);
  dispatch(to, std::move(envelope), std::move(message));
  progress();
}

void MpiChannel::tell(RankId to, const Notice& notice) {
  const std::lock_guard lock(mutex_);
  dispatch(to, notice);
  progress();
}

void MpiChannel::dispatch(RankId to, const Notice& notice) {
  Envelope envelope;
  envelope.notice = notice.kind;
  envelope.step = notice.step;
  envelope.about = notice.about;
  envelope.header = notice.text;
  dispatch(to, std::move(envelope), {});
}

c10::Stream MpiChannel::copy_stream(at::Device device) {
  const auto known = std::find_if(copy_streams_.begin(), copy_streams_.end(),
                                  [&](const c10::Stream& stream) { return stream.device() == device; });
  return known != copy_streams_.end() ? *known : copy_streams_.emplace_back(new_stream(device));
}

void MpiChannel::dispatch(RankId to, Envelope envelope, Message message) {
  std::vector<SparseForm> sparse = take_apart(message.tensors);
  for (at::Tensor& tensor : message.tensors) {
    if (tensor.defined()) tensor = as_memory(tensor);
  }
  find_description(described_[to.index()], envelope, message, std::move(sparse));
  Outgoing prepared;
  prepared.to = to;
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    const TensorForm& form = envelope.description->tensors[i];
    if (!form.is_defined || form.is_inline) continue;
    Blob& blob = prepared.blobs.emplace_back();
    blob.memory = message.tensors[i].detach();
    blob.bytes = form.bytes();
    if (blob.memory.is_cpu()) continue;
    const at::Device where = blob.memory.device();
    if (device_is_direct_) {
      prepared.written.emplace_back(where.type()).record(current_stream(where));
      continue;
    }
    // Copy to the host on a stream of its own; the send starts when the copy is done.
    const c10::Stream stream = copy_stream(where);
    run_after(stream, current_stream(where));
    const c10::StreamGuard guard(stream);
    const at::Tensor host = at::empty_strided(blob.memory.sizes(), blob.memory.strides(),
                                              blob.memory.options().device(at::kCPU).pinned_memory(true));
    host.copy_(blob.memory, /*non_blocking=*/true);
    c10::impl::VirtualGuardImpl(where.type()).recordDataPtrOnStream(blob.memory.storage().data_ptr(), stream);
    prepared.written.emplace_back(where.type()).record(stream);
    blob.memory = host;
  }

  // From here on nothing fails: what is counted and described is sent.
  envelope.sequence = sent_[to.index()]++;
  if (envelope.may_repeat && envelope.describes) envelope.number = described_[to.index()].add(envelope.description);
  Outgoing& outgoing = outgoing_.emplace_back(std::move(prepared));
  outgoing.mpi_tag = mpi_tag_of(envelope.sequence);
  outgoing.envelope = encode(envelope, message.tensors);
  if (envelope.header_blob > 0) {
    Blob& blob = *outgoing.blobs.emplace(outgoing.blobs.begin());
    blob.text = std::move(envelope.header);
    blob.bytes = static_cast<std::int64_t>(blob.text.size());
  }
  outgoing.requests.emplace_back();
  check(MPI_Isend(outgoing.envelope.data(), static_cast<int>(outgoing.envelope.size()), MPI_BYTE, to.value,
                  kEnvelopeTag, communicator_, &outgoing.requests.back()),
        "MPI_Isend");
  if (outgoing.written.empty()) start_sending(outgoing);
}

void MpiChannel::start_sending(Outgoing& outgoing) {
  outgoing.started = true;
  outgoing.written.clear();
  for (Blob& blob : outgoing.blobs) {
    blob.data = blob.memory.defined() ? static_cast<char*>(blob.memory.data_ptr()) : blob.text.data();
    for_each_piece(blob.bytes, [&](std::int64_t at, std::int64_t size) {
      check(MPI_Isend(blob.data + at, static_cast<int>(size), MPI_BYTE, outgoing.to.value, outgoing.mpi_tag,
                      communicator_, &outgoing.requests.emplace_back()),
            "MPI_Isend");
    });
  }
}

// --- receiving ---

void MpiChannel::post(RankId from, const Tag& tag) {
  const std::lock_guard lock(mutex_);
  const auto here = find(from, tag);
  if (here == arrivals_.end()) {
    wanted_.insert({from, tag});
  } else {
    try_receiving(here);
  }
}

/// Whether it is a message of a failed step, which nobody will take.
bool MpiChannel::is_left_over(const Envelope& envelope) const {
  return !envelope.notice && envelope.step < first_step_;
}

MpiChannel::Arrivals::iterator MpiChannel::find(RankId from, const Tag& tag) {
  const auto [begin, end] = arrivals_.equal_range({from, tag});
  for (auto it = begin; it != end; ++it) {
    const Envelope& envelope = it->second.envelope;
    if (!envelope.notice && !is_left_over(envelope)) return it;
  }
  return arrivals_.end();
}

void MpiChannel::arrive(RankId from, Envelope envelope) {
  if (envelope.notice && envelope.header_blob == 0) return hear(from, envelope);
  look_up_description(known_[from.index()], envelope);
  const Key key{from, envelope.tag};
  const auto arrival = arrivals_.emplace(key, Incoming());
  Incoming& incoming = arrival->second;
  incoming.from = from;
  incoming.envelope = std::move(envelope);
  const Envelope& sent = incoming.envelope;
  if (is_left_over(sent)) return drop(arrival);
  const bool has_blobs =
      sent.header_blob > 0 || std::any_of(sent.description->tensors.begin(), sent.description->tensors.end(),
                                          [](const auto& form) { return form.is_defined && !form.is_inline; });
  const bool is_wanted = !sent.notice && wanted_.erase(key) > 0;
  if (!has_blobs || sent.notice || is_wanted) try_receiving(arrival);
}

/// Ignores OutOfMemory: `take` tries again, and throws it.
void MpiChannel::try_receiving(Arrivals::iterator arrival) {
  try {
    start_receiving(arrival);
  } catch (const OutOfMemory&) {
    return;
  }
}

void MpiChannel::start_receiving(Arrivals::iterator arrival) {
  Incoming& incoming = arrival->second;
  if (incoming.started) return;
  allocate(incoming);
  incoming.started = true;
  moving_.push_back(arrival);
  if (incoming.free.empty()) issue_receives(arrival);
}

/// Throws OutOfMemory, and leaves the message as it was, when there is no room for it.
void MpiChannel::allocate(Incoming& incoming) {
  const char* inline_data = incoming.envelope.inline_bytes.data();
  const TensorForm* present = nullptr;
  try {
    incoming.envelope.header.reserve(incoming.envelope.header_blob);
    for (const TensorForm& form : incoming.envelope.description->tensors) {
      present = &form;
      if (!form.is_defined) {
        incoming.tensors.emplace_back();
        continue;
      }
      if (form.is_meta) {
        incoming.tensors.push_back(at::empty(form.sizes, at::TensorOptions().dtype(form.type).device(at::kMeta)));
        continue;
      }
      const bool goes_to_device =
          device_ && !device_->is_cpu() && !form.is_inline && !incoming.envelope.stays_on_host(form);
      const bool lands_on_device = goes_to_device && device_is_direct_;
      const bool is_staged = goes_to_device && !device_is_direct_;
      at::TensorOptions options = at::TensorOptions().dtype(form.type);
      if (lands_on_device) options = options.device(*device_);
      if (is_staged) options = options.pinned_memory(true);
      const bool is_large = !goes_to_device && form.bytes() > static_cast<std::int64_t>(RecycledMemory::kSmallest);
      at::Tensor tensor = is_large ? memory_.empty(form.sizes, form.type) : at::empty(form.sizes, options);
      if (!form.strides.empty()) tensor = tensor.as_strided(form.sizes, form.strides);
      if (form.is_inline) {
        if (form.bytes() > 0) std::memcpy(tensor.data_ptr(), inline_data, static_cast<std::size_t>(form.bytes()));
        inline_data += form.bytes();
      }
      if (lands_on_device) incoming.free.emplace_back(device_->type()).record(current_stream(*device_));
      incoming.tensors.push_back(tensor);
    }
  } catch (const std::exception& error) {
    incoming.tensors.clear();
    incoming.free.clear();
    throw OutOfMemory(rank_, incoming.from, incoming.envelope, present, error);
  }
}

void MpiChannel::issue_receives(Arrivals::iterator arrival) {
  Incoming& incoming = arrival->second;
  incoming.issued = true;
  incoming.free.clear();
  Envelope& envelope = incoming.envelope;
  const int tag = mpi_tag_of(envelope.sequence);
  const auto receive_into = [&](char* data, std::int64_t bytes) {
    for_each_piece(bytes, [&](std::int64_t at, std::int64_t size) {
      check(MPI_Irecv(data + at, static_cast<int>(size), MPI_BYTE, incoming.from.value, tag, communicator_,
                      &incoming.requests.emplace_back()),
            "MPI_Irecv");
    });
  };
  if (envelope.header_blob > 0) {
    envelope.header.resize(envelope.header_blob);
    receive_into(envelope.header.data(), static_cast<std::int64_t>(envelope.header_blob));
  }
  const std::vector<TensorForm>& forms = envelope.description->tensors;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const TensorForm& form = forms[i];
    if (form.is_defined && !form.is_inline) {
      receive_into(static_cast<char*>(incoming.tensors[i].data_ptr()), form.bytes());
    }
  }
}

void MpiChannel::drop(Arrivals::iterator arrival) {
  const Incoming& incoming = arrival->second;
  Drop drop{incoming.from, mpi_tag_of(incoming.envelope.sequence), {}};
  const auto add = [&](std::int64_t bytes) {
    for_each_piece(bytes, [&](std::int64_t, std::int64_t size) { drop.pieces.push_back(size); });
  };
  add(static_cast<std::int64_t>(incoming.envelope.header_blob));
  for (const TensorForm& form : incoming.envelope.description->tensors) {
    if (form.is_defined && !form.is_inline) add(form.bytes());
  }
  std::reverse(drop.pieces.begin(), drop.pieces.end());
  arrivals_.erase(arrival);
  if (!drop.pieces.empty()) drops_.push_back(std::move(drop));
}

void MpiChannel::progress_drops() {
  while (!drops_.empty()) {
    int done = 0;
    check(MPI_Test(&drop_request_, &done, MPI_STATUS_IGNORE), "MPI_Test");  // also done if none is pending
    if (done == 0) return;
    Drop& first = drops_.front();
    if (first.pieces.empty()) {
      drops_.pop_front();
      continue;
    }
    check(MPI_Irecv(dropped_.get(), static_cast<int>(first.pieces.back()), MPI_BYTE, first.from.value, first.mpi_tag,
                    communicator_, &drop_request_),
          "MPI_Irecv");
    first.pieces.pop_back();
  }
}

bool MpiChannel::move_on(Arrivals::iterator arrival) {
  Incoming& incoming = arrival->second;
  if (!incoming.issued) {
    if (!all_happened(incoming.free)) return false;
    issue_receives(arrival);
  }
  if (!all_done(incoming.requests)) return false;
  incoming.is_complete = true;
  return true;
}

/// Called for a complete message.
void MpiChannel::finish_receiving(Arrivals::iterator arrival) {
  const Envelope& envelope = arrival->second.envelope;
  if (!envelope.notice && !is_left_over(envelope)) return;  // it waits for `take`
  if (envelope.notice) hear(arrival->second.from, envelope);
  arrivals_.erase(arrival);
}

void MpiChannel::end_step(std::uint64_t next, bool failed) {
  const std::lock_guard lock(mutex_);
  if (failed) {
    first_step_ = next;
    drop_left_over();
  }
  progress(/*thoroughly=*/true);
}

void MpiChannel::drop_left_over() {
  wanted_.clear();
  for (auto it = arrivals_.begin(); it != arrivals_.end();) {
    const auto arrival = it++;
    if (!is_left_over(arrival->second.envelope)) continue;
    if (!arrival->second.started) {
      drop(arrival);
    } else if (arrival->second.is_complete) {
      arrivals_.erase(arrival);
    }
  }
}

std::optional<Message> MpiChannel::take(RankId from, const Tag& tag) {
  const std::lock_guard lock(mutex_);
  const auto here = find(from, tag);
  if (here == arrivals_.end()) {
    wanted_.insert({from, tag});
    return std::nullopt;
  }
  if (!here->second.started) {
    try {
      start_receiving(here);
    } catch (const OutOfMemory&) {
      if (here->second.envelope.step == kNoStep) drop(here);  // no failed step will
      throw;
    }
    progress();
  }
  if (!here->second.is_complete) return std::nullopt;
  Incoming incoming = std::move(here->second);
  arrivals_.erase(here);
  // Allocated by whichever thread was there when it came, and so on that one's stream.
  for (const at::Tensor& tensor : incoming.tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) continue;
    c10::impl::VirtualGuardImpl(tensor.device().type())
        .recordDataPtrOnStream(tensor.storage().data_ptr(), current_stream(tensor.device()));
  }
  return to_message(std::move(incoming.envelope), std::move(incoming.tensors), device_);
}

bool MpiChannel::is_coming(RankId from, const Tag& tag) {
  const std::lock_guard lock(mutex_);
  return find(from, tag) != arrivals_.end();
}

}  // namespace stagecraft::mpi

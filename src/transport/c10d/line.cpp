#include "line.h"

#include <ATen/ATen.h>

#include <cstring>

#include "stagecraft/core/error.h"

namespace stagecraft::c10d_transport {
namespace {

constexpr char kGoodbye = '\xff';  // an envelope of one byte; others begin with the kind of a notice, or 0
// Envelopes are received ahead of time, so that a sender need not ask whether there is room.
constexpr std::size_t kPosted = 4;
// What is sent is released some time later, many at a time: a thread that wakes up for every message takes a core from
// those that compute.
constexpr std::chrono::milliseconds kRest{2};
constexpr std::size_t kManySent = 32;
// Waits of a group that time out break all its connections: these must not. Ten years fit the clock.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365 * 10);

at::Tensor bytes_at(void* data, std::int64_t bytes) { return at::from_blob(data, {bytes}, at::kByte); }

std::string first_line(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

void Line::start() {
  std::thread([line = shared_from_this()] { line->receive(); }).detach();
  std::thread([line = shared_from_this()] { line->release_sent(); }).detach();
}

// --- sending ---

void Line::send(wire::Envelope envelope, Message message) {
  std::vector<wire::SparseForm> sparse = wire::take_apart(message.tensors);
  for (at::Tensor& tensor : message.tensors) {
    if (!tensor.defined()) continue;
    if (!tensor.is_cpu() && !tensor.is_meta()) {
      tensor = tensor.detach().cpu().set_requires_grad(tensor.requires_grad());
    }
    tensor = wire::as_memory(tensor);
  }
  const std::lock_guard lock(sending_);
  if (has_said_goodbye_) return;
  wire::find_description(described_, envelope, message, std::move(sparse));
  if (envelope.may_repeat && envelope.describes) envelope.number = described_.add(envelope.description);
  try {
    transmit(wire::encode(envelope, message.tensors), tag_);
    if (envelope.header_blob > 0) transmit(std::move(envelope.header), tag_ + 1);
    for (std::size_t i = 0; i < message.tensors.size(); ++i) {
      const wire::TensorForm& form = envelope.description->tensors[i];
      if (form.is_defined && !form.is_inline && form.bytes() > 0) transmit(message.tensors[i], form.bytes());
    }
  } catch (const std::exception&) {
    has_said_goodbye_ = true;  // broken; the receiving thread finds out whether the other rank had left before
  }
}

void Line::transmit(std::string bytes, int tag) {
  Transfer transfer;
  transfer.text = std::move(bytes);
  const auto size = static_cast<std::int64_t>(transfer.text.size());
  if (size <= 15) {  // short texts lie inside the object, which moves
    transfer.memory = at::empty({size}, at::kByte);
    std::memcpy(transfer.memory.data_ptr(), transfer.text.data(), transfer.text.size());
    transfer.bytes = transfer.memory;
  } else {
    transfer.bytes = bytes_at(transfer.text.data(), size);
  }
  std::vector<at::Tensor> list{transfer.bytes};
  transfer.work = group_->send(list, peer_.value, tag);
  add(std::move(transfer));
}

void Line::transmit(const at::Tensor& tensor, std::int64_t bytes) {
  Transfer transfer;
  transfer.memory = tensor.detach();  // not the one that Python may hold: it is released in another thread
  transfer.bytes = bytes_at(transfer.memory.data_ptr(), bytes);
  std::vector<at::Tensor> list{transfer.bytes};
  transfer.work = group_->send(list, peer_.value, tag_ + 1);
  add(std::move(transfer));
}

void Line::add(Transfer transfer) {
  const std::lock_guard lock(mutex_);
  sent_.push_back(std::move(transfer));
  if (sent_.size() == 1 || sent_.size() == kManySent) changed_.notify_all();
}

void Line::say_goodbye() {
  const std::lock_guard lock(sending_);
  if (!has_said_goodbye_) {
    has_said_goodbye_ = true;
    try {
      transmit(std::string(1, kGoodbye), tag_);
    } catch (const std::exception&) {  // the other has gone first
    }
  }
  const std::lock_guard also(mutex_);
  is_sending_over_ = true;
  changed_.notify_all();
}

/// The thread that releases what is sent.
void Line::release_sent() {
  std::unique_lock lock(mutex_);
  bool is_behind = false;  // there is more that may be gone
  while (true) {
    changed_.wait(lock, [&] { return !sent_.empty() || is_sending_over_; });
    if (sent_.empty()) return;
    if (!is_behind) {
      changed_.wait_for(lock, kRest, [&] { return sent_.size() >= kManySent || is_sending_over_; });
    }
    const WorkPtr work = sent_.front().work;
    lock.unlock();
    bool is_broken = false;
    try {
      work->wait(kForever);
    } catch (const std::exception&) {
      is_broken = true;  // as above
    }
    std::deque<Transfer> done;  // destroyed without the lock
    lock.lock();
    is_behind = sent_.size() > 1;
    if (is_broken) {
      done.swap(sent_);
    } else {
      done.push_back(std::move(sent_.front()));
      sent_.pop_front();
    }
    changed_.notify_all();
    lock.unlock();
    done.clear();
    lock.lock();
  }
}

bool Line::wait_until_sent(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until, [&] { return sent_.empty(); });
}

bool Line::wait_until_over(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until, [&] { return is_over_; });
}

// --- receiving ---

Line::Transfer Line::post_envelope() const {
  Transfer transfer;
  transfer.bytes = at::empty({static_cast<std::int64_t>(wire::kEnvelopeBytes)}, at::kByte);
  std::vector<at::Tensor> list{transfer.bytes};
  transfer.work = group_->recv(list, peer_.value, tag_);
  return transfer;
}

/// The thread that receives.
void Line::receive() {
  try {
    std::deque<Transfer> posted;
    while (posted.size() < kPosted) posted.push_back(post_envelope());
    while (true) {
      Transfer first = std::move(posted.front());
      posted.pop_front();
      first.work->wait(kForever);
      if (*static_cast<const char*>(first.bytes.const_data_ptr()) == kGoodbye) break;
      take_in({static_cast<const char*>(first.bytes.const_data_ptr()), wire::kEnvelopeBytes});
      posted.push_back(post_envelope());
    }
  } catch (const std::exception& error) {
    lose(first_line(error));
  }
  reports_->mailbox->forget(peer_);
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  changed_.notify_all();
}

void Line::receive_blob(char* data, std::int64_t bytes) const {
  std::vector<at::Tensor> list{bytes_at(data, bytes)};
  group_->recv(list, peer_.value, tag_ + 1)->wait(kForever);
}

void Line::receive_tensors(wire::Envelope& envelope, std::vector<at::Tensor>& tensors) const {
  if (envelope.header_blob > 0) {
    envelope.header.resize(envelope.header_blob);
    receive_blob(envelope.header.data(), static_cast<std::int64_t>(envelope.header_blob));
  }
  const char* inline_data = envelope.inline_bytes.data();
  for (const wire::TensorForm& form : envelope.description->tensors) {
    at::Tensor& tensor = tensors.emplace_back();
    if (!form.is_defined) continue;
    tensor = at::empty(form.sizes, at::TensorOptions().dtype(form.type).device(form.is_meta ? at::kMeta : at::kCPU));
    if (!form.strides.empty()) tensor = tensor.as_strided(form.sizes, form.strides);
    const std::int64_t bytes = form.bytes();
    if (bytes == 0) continue;
    if (form.is_inline) {
      std::memcpy(tensor.data_ptr(), inline_data, static_cast<std::size_t>(bytes));
      inline_data += bytes;
    } else {
      receive_blob(static_cast<char*>(tensor.data_ptr()), bytes);
    }
  }
}

void Line::take_in(std::span<const char> bytes) {
  wire::Mailbox::Entry entry;
  wire::Envelope& envelope = entry.envelope;
  envelope = wire::decode(bytes);
  entry.from = peer_;
  entry.tag = envelope.tag;
  entry.step = envelope.step;
  if (envelope.notice) {
    if (envelope.header_blob > 0) receive_tensors(envelope, entry.tensors);
    return reports_->hear(peer_, {*envelope.notice, envelope.step, envelope.about, envelope.header});
  }
  wire::look_up_description(known_, envelope);
  // A message of a failed step is received all the same, so that its sender can release it.
  const bool is_wanted = reports_->mailbox->announce(peer_, entry.tag, entry.step);
  receive_tensors(envelope, entry.tensors);
  if (is_wanted) reports_->mailbox->deliver(std::move(entry));
}

void Line::lose(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (is_over_) return;
    is_over_ = true;
    changed_.notify_all();
  }
  reports_->mailbox->forget(peer_);
  reports_->lose(peer_, "the process of rank " + std::to_string(peer_.value) +
                            " has ended in the middle of the run: it was killed, crashed or called exit (" + why + ")");
}

}  // namespace stagecraft::c10d_transport

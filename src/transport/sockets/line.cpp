#include "line.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <cstring>
#include <system_error>
#include <thread>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"
#include "wire/out_of_memory.h"

namespace stagecraft::sockets {
namespace {

struct Head {
  std::uint32_t kind;
  std::uint32_t size;
};

constexpr const char* kEnded = " has ended in the middle of the run: it was killed, crashed or called exit";

}  // namespace

void Line::start() {
  std::thread([line = shared_from_this()] { line->receive(); }).detach();
  std::thread([line = shared_from_this()] { line->write_rest(); }).detach();
}

std::string Line::head_of(Kind kind, std::size_t size) {
  const Head head{static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(size)};
  return {reinterpret_cast<const char*>(&head), sizeof head};
}

bool Line::travels_by_nccl(const at::Tensor& tensor) const {
  return nccl_ && tensor.defined() && tensor.device().type() == nccl_->device().type();
}

// --- sending ---

void Line::send(wire::Envelope envelope, Message message) {
  std::vector<wire::SparseForm> sparse = wire::take_apart(message.tensors);
  bool needs_path = false;
  for (at::Tensor& tensor : message.tensors) {
    if (!tensor.defined()) continue;
    const bool wants_gradient = tensor.requires_grad();
    if (travels_by_nccl(tensor)) {
      if (tensor.device() != nccl_->device())
        tensor = tensor.detach().to(nccl_->device()).set_requires_grad(wants_gradient);
      needs_path = needs_path || tensor.nbytes() > 0;
    } else if (!tensor.is_cpu() && !tensor.is_meta()) {
      tensor = tensor.detach().cpu().set_requires_grad(wants_gradient);
    }
    tensor = wire::as_memory(tensor);
  }
  nccl::Communicator* path = needs_path ? path_out() : nullptr;
  if (needs_path && path == nullptr) return;

  const std::lock_guard lock(sending_);
  if (has_said_goodbye_) return;
  wire::find_description(described_, envelope, message, std::move(sparse));
  if (envelope.may_repeat && envelope.describes) envelope.number = described_.add(envelope.description);
  Frame frame;
  const std::string text = wire::encode(envelope, message.tensors);
  frame.head = head_of(Kind::kEnvelope, text.size()) + text;
  if (envelope.header_blob > 0) frame.head += envelope.header;
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    const wire::TensorForm& form = envelope.description->tensors[i];
    if (!form.is_defined || form.is_inline || form.bytes() == 0 || !form.is_on_host) continue;
    frame.blobs.push_back(message.tensors[i].detach());  // not the one that Python may hold: another thread releases it
  }
  put(std::move(frame));
  if (path != nullptr) ship(*path, envelope, message.tensors);
}

/// The communicator to the other rank; connects it for the first message. Null when that rank is lost or has left.
nccl::Communicator* Line::path_out() {
  const std::lock_guard one_at_a_time(introducing_);
  if (!out_) {
    const std::string id = nccl::new_id();
    {
      const std::lock_guard lock(sending_);
      put({head_of(Kind::kCommunicator, id.size()) + id, {}, 0});
    }
    out_ = nccl_->connect(id, {own_, peer_}, 0);
  }
  const auto until = Clock::now() + nccl_->limit();
  while (
      !out_->wait_until_connected(std::min<Clock::time_point>(until, Clock::now() + std::chrono::milliseconds(20)))) {
    if (wait_until_over(Clock::now())) return nullptr;
    if (Clock::now() >= until) {
      throw TimeoutError("rank " + std::to_string(peer_.value) + " has not connected by NCCL in time", peer_);
    }
  }
  return out_.get();
}

void Line::ship(nccl::Communicator& path, const wire::Envelope& envelope, const std::vector<at::Tensor>& tensors) {
  run_after(path.stream(), current_stream(nccl_->device()));
  const c10::impl::VirtualGuardImpl guard(nccl_->device().type());
  const auto send_all = [&](const nccl::Library& nccl, nccl::Comm comm, nccl::Stream stream) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const wire::TensorForm& form = envelope.description->tensors[i];
      if (!form.is_defined || form.is_on_host || form.is_inline || form.bytes() == 0) continue;
      nccl::check(nccl.ncclSend(tensors[i].const_data_ptr(), static_cast<std::size_t>(form.bytes()), nccl::kUint8, 1,
                                comm, stream),
                  "ncclSend", comm);
      guard.recordDataPtrOnStream(tensors[i].storage().data_ptr(), path.stream());
    }
  };
  // If it is not issued, some rank is lost, and the next wait says so.
  (void)path.issue(to_text(envelope.tag) + ", for rank " + std::to_string(peer_.value), send_all);
}

void Line::wait_for_reads() {
  const std::lock_guard lock(introducing_);
  if (out_) run_after(current_stream(nccl_->device()), out_->stream());
}

void Line::put(Frame frame) {
  std::unique_lock lock(mutex_);
  if (is_sending_over_) return;
  if (waiting_.empty()) {
    lock.unlock();  // only the thread that holds `sending_` adds to the list, so it stays empty
    try {
      if (write(frame, /*may_wait=*/false)) return;
    } catch (const std::exception&) {
      lock.lock();
      is_sending_over_ = true;  // broken; the receiving thread finds out whether the other rank had left before
      changed_.notify_all();
      return;
    }
    lock.lock();
  }
  waiting_.push_back(std::move(frame));
  changed_.notify_all();
}

bool Line::write(Frame& frame, bool may_wait) {
  while (true) {
    std::vector<iovec> parts;
    std::size_t before = 0;
    const auto add = [&](void* data, std::size_t bytes) {
      const std::size_t skipped = std::min(bytes, frame.done - std::min(frame.done, before));
      if (skipped < bytes) parts.push_back({static_cast<char*>(data) + skipped, bytes - skipped});
      before += bytes;
    };
    add(frame.head.data(), frame.head.size());
    for (const at::Tensor& blob : frame.blobs) add(blob.data_ptr(), blob.nbytes());
    if (parts.empty()) return true;
    const std::size_t gone = may_wait ? socket_.write(parts) : socket_.write_some(parts);
    if (gone == 0 && !may_wait) return false;
    frame.done += gone;
  }
}

/// The thread that writes what did not go at once.
void Line::write_rest() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !waiting_.empty() || is_sending_over_; });
    if (waiting_.empty()) break;
    Frame& first = waiting_.front();
    lock.unlock();
    bool is_broken = false;
    try {
      write(first, /*may_wait=*/true);
    } catch (const std::exception&) {
      is_broken = true;  // as above
    }
    std::deque<Frame> done;  // destroyed without the lock
    lock.lock();
    if (is_broken) {
      is_sending_over_ = true;
      done.swap(waiting_);
    } else {
      done.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    changed_.notify_all();
    lock.unlock();
    done.clear();
    lock.lock();
  }
  socket_.end_writing();
}

void Line::say_goodbye() {
  const std::lock_guard lock(sending_);
  if (!has_said_goodbye_) {
    has_said_goodbye_ = true;
    put({head_of(Kind::kGoodbye, 0), {}, 0});
  }
  const std::lock_guard also(mutex_);
  is_sending_over_ = true;
  changed_.notify_all();
}

bool Line::wait_until_sent(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until, [&] { return waiting_.empty(); });
}

bool Line::wait_until_over(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until, [&] { return is_over_; });
}

bool Line::wait_until_released(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until, [&] { return is_over_ || is_released_; });
}

// --- receiving ---

bool Line::fetch(void* data, std::size_t bytes) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    if (begin_ == end_ && bytes < buffer_.size()) {
      begin_ = 0;
      end_ = socket_.read(buffer_.data(), buffer_.size());
      if (end_ == 0) return false;
    }
    std::size_t got = std::min(bytes, end_ - begin_);
    if (got > 0) {
      std::memcpy(to, buffer_.data() + begin_, got);
      begin_ += got;
    } else {  // much of it, which needs no copy
      got = socket_.read(to, bytes);
      if (got == 0) return false;
    }
    to += got;
    bytes -= got;
  }
  return true;
}

void Line::need(void* data, std::size_t bytes) {
  if (!fetch(data, bytes)) throw TransportError("the connection was closed", peer_);
}

void Line::skip(std::size_t bytes) {
  std::vector<char> unwanted(std::min(bytes, buffer_.size()));
  for (; bytes > 0; bytes -= std::min(bytes, unwanted.size())) need(unwanted.data(), std::min(bytes, unwanted.size()));
}

/// The thread that receives.
void Line::receive() {
  try {
    if (nccl_) set_current_device(nccl_->device());
    while (true) {
      Head head{};
      need(&head, sizeof head);
      if (head.kind == static_cast<std::uint32_t>(Kind::kGoodbye)) break;
      if (head.kind == static_cast<std::uint32_t>(Kind::kCommunicator)) {
        std::string id(head.size, '\0');
        need(id.data(), id.size());
        if (!nccl_) throw TransportError("it sends by NCCL, which this rank does not have", peer_);
        in_ = nccl_->connect(id, {peer_, own_}, 1);
        continue;
      }
      if (head.kind == static_cast<std::uint32_t>(Kind::kRelease)) {
        const std::lock_guard lock(mutex_);
        is_released_ = true;
        changed_.notify_all();
        continue;
      }
      take_in(head.size);
    }
  } catch (const std::system_error& error) {
    const bool is_cut_off = error.code() == std::errc::timed_out || error.code() == std::errc::host_unreachable ||
                            error.code() == std::errc::network_unreachable;
    lose(is_cut_off ? " is out of reach: its host or the network to it is gone" : kEnded, error.what());
  } catch (const c10::Error& error) {
    lose(kEnded, error.what_without_backtrace());
  } catch (const std::exception& error) {
    lose(kEnded, error.what());
  }
  reports_->mailbox->forget(peer_);
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;  // first: a thread that waits to be connected by NCCL stops waiting, and lets go of the path
    changed_.notify_all();
  }
  if (!nccl_) return;
  end_paths();
  release();
}

/// What is still running with a rank that has left without a failure ends when this rank's device has come to it; with
/// one that has failed it ends soon, or never.
void Line::end_paths() {
  const auto begin = Clock::now();
  const auto is_in_time = [&] {
    constexpr auto kSoon = std::chrono::seconds(5);
    return Clock::now() - begin <
           (reports_->has_any_failed() ? std::min<Clock::duration>(kSoon, nccl_->limit()) : nccl_->limit());
  };
  std::vector<CommunicatorPtr> stuck = nccl_->with(peer_);
  const auto drop_idle = [&] { std::erase_if(stuck, [](const CommunicatorPtr& path) { return path->is_idle(); }); };
  for (drop_idle(); !stuck.empty() && is_in_time(); drop_idle()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (stuck.empty()) return;
  if (!reports_->has_any_failed()) {
    reports_->lose(peer_, "the program of rank " + std::to_string(peer_.value) + " has ended, and what rank " +
                              std::to_string(own_.value) +
                              " exchanges with it by NCCL did not end in time: its tensors "
                              "are not whole");
  }
  nccl::Communicator::abort(stuck);
}

/// The last thing that the other rank waits for, before its memory is gone.
void Line::release() {
  const std::lock_guard lock(sending_);
  if (!has_said_goodbye_) put({head_of(Kind::kRelease, 0), {}, 0});
}

void Line::take_in(std::size_t bytes) {
  std::string text(bytes, '\0');
  need(text.data(), text.size());
  wire::Mailbox::Entry entry;
  wire::Envelope& envelope = entry.envelope;
  envelope = wire::decode(text);
  entry.from = peer_;
  entry.tag = envelope.tag;
  entry.step = envelope.step;
  if (envelope.header_blob > 0) {
    envelope.header.resize(envelope.header_blob);
    need(envelope.header.data(), envelope.header.size());
  }
  if (envelope.notice) {
    return reports_->hear(peer_, {*envelope.notice, envelope.step, envelope.about, envelope.header});
  }
  wire::look_up_description(known_, envelope);
  // A message of a failed step is received all the same, so that its sender can release it.
  const bool is_wanted = reports_->mailbox->announce(peer_, entry.tag, entry.step);
  const bool is_here = receive_tensors(entry);
  if (is_wanted && is_here) reports_->mailbox->deliver(std::move(entry));
}

nccl::Communicator& Line::path_in() {
  if (!in_) throw InternalError("a message by NCCL has come before its communicator");
  while (!in_->wait_until_connected(Clock::now() + std::chrono::milliseconds(20))) {
    if (socket_.is_hung_up()) throw TransportError("the connection was closed", peer_);
  }
  return *in_;
}

/// Returns false when they will not come, because some rank is lost.
bool Line::receive_tensors(wire::Mailbox::Entry& entry) {
  const char* inline_data = entry.envelope.inline_bytes.data();
  std::vector<at::Tensor> shipped;
  for (const wire::TensorForm& form : entry.envelope.description->tensors) {
    at::Tensor& tensor = entry.tensors.emplace_back();
    if (!form.is_defined) continue;
    const std::int64_t bytes = form.bytes();
    const bool is_shipped = !form.is_on_host && !form.is_meta && bytes > 0;
    std::optional<c10::StreamGuard> guard;
    if (is_shipped) guard.emplace(path_in().stream());
    const at::Device device = form.is_meta ? at::Device(at::kMeta)
                              : is_shipped ? nccl_->device()
                                           : at::Device(at::kCPU);
    try {
      tensor = at::empty(form.sizes, at::TensorOptions().dtype(form.type).device(device));
      if (!form.strides.empty()) tensor = tensor.as_strided(form.sizes, form.strides);
    } catch (const std::exception& error) {
      const wire::OutOfMemory none(own_, peer_, entry.envelope, &form, error);
      if (is_shipped) throw none;  // what NCCL has begun it cannot drop
      entry.failure = std::make_exception_ptr(none);
      tensor = at::Tensor();
    }
    if (bytes == 0) continue;
    if (is_shipped) {
      shipped.push_back(tensor);
    } else if (form.is_inline) {
      if (tensor.defined()) std::memcpy(tensor.data_ptr(), inline_data, static_cast<std::size_t>(bytes));
      inline_data += bytes;
    } else if (!tensor.defined()) {
      skip(static_cast<std::size_t>(bytes));
    } else {
      need(tensor.data_ptr(), static_cast<std::size_t>(bytes));
    }
  }
  if (shipped.empty()) return true;
  nccl::Communicator& path = path_in();
  const auto receive_all = [&](const nccl::Library& nccl, nccl::Comm comm, nccl::Stream stream) {
    for (const at::Tensor& tensor : shipped) {
      nccl::check(nccl.ncclRecv(tensor.data_ptr(), tensor.nbytes(), nccl::kUint8, 0, comm, stream), "ncclRecv", comm);
    }
  };
  if (!path.issue(to_text(entry.tag) + ", from rank " + std::to_string(peer_.value), receive_all)) return false;
  entry.written.emplace(nccl_->device().type()).record(path.stream());
  return true;
}

void Line::lose(const std::string& what, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (is_over_) return;
    is_over_ = true;
    is_sending_over_ = true;
    changed_.notify_all();
  }
  socket_.break_off();
  reports_->mailbox->forget(peer_);
  const std::string who = (what == kEnded ? "the process of rank " : "rank ") + std::to_string(peer_.value);
  reports_->lose(peer_, who + what + " (" + why.substr(0, why.find('\n')) + ")");
}

}  // namespace stagecraft::sockets

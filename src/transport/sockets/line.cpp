#include "line.h"

#include <ATen/ATen.h>

#include <thread>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"
#include "words_of.h"

namespace stagecraft::sockets {

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

  std::unique_lock lock(sending_);
  if (has_said_goodbye_) return;
  if (path != nullptr && has_failed_to_ship_) {
    throw TransportError("what rank " + std::to_string(own_.value) + " has sent by NCCL has not gone", peer_);
  }
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
  if (path == nullptr) return;
  try {
    ship(*path, envelope, message.tensors);
  } catch (const std::exception& error) {
    has_failed_to_ship_ = true;
    lock.unlock();  // to tell the other rank
    reports_->give_up("rank " + std::to_string(own_.value) + " cannot send to rank " + std::to_string(peer_.value) +
                      " any more (" + words_of(error) + ")");
    throw;
  }
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
    out_ = nccl_->connect(id, {own_, peer_}, 0, nccl::Use::kMessages);
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
  // Whoever is still being connected by NCCL takes the end of the stream for the end of this process.
  if (nccl_) changed_.wait(lock, [&] { return is_over_ || is_released_; });
  lock.unlock();
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

}  // namespace stagecraft::sockets

// The half of a line that its receiving thread runs.

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <cstring>
#include <system_error>
#include <thread>

#include "line.h"
#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"
#include "wire/out_of_memory.h"

namespace stagecraft::sockets {
namespace {

constexpr const char* kEnded = " has ended in the middle of the run: it was killed, crashed or called exit";
constexpr const char* kUnreadable = " cannot send to this rank any more";

/// The other rank has closed its end of the connection.
class Closed : public TransportError {
 public:
  explicit Closed(RankId peer) : TransportError("the connection was closed", peer) {}
};

}  // namespace

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
  if (!fetch(data, bytes)) throw Closed(peer_);
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
  } catch (const Closed& error) {
    lose(kEnded, error.what());
  } catch (const std::system_error& error) {
    const bool is_cut_off = error.code() == std::errc::timed_out || error.code() == std::errc::host_unreachable ||
                            error.code() == std::errc::network_unreachable;
    lose(is_cut_off ? " is out of reach: its host or the network to it is gone" : kEnded, error.what());
  } catch (...) {
    give_up_or_lose(std::current_exception());
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
    try {
      envelope.header.resize(envelope.header_blob);
      need(envelope.header.data(), envelope.header.size());
    } catch (const std::bad_alloc& error) {
      entry.failure = std::make_exception_ptr(wire::OutOfMemory(own_, peer_, envelope, nullptr, error));
      skip(envelope.header_blob);
    }
  }
  if (envelope.notice) {
    return reports_->hear(peer_, {*envelope.notice, envelope.step, envelope.about, envelope.header});
  }
  wire::look_up_description(known_, envelope);
  // A message of a failed step is received all the same, so that its sender can release it.
  const bool is_wanted = reports_->mailbox->announce(peer_, entry.tag, entry.step);
  const bool is_here = receive_tensors(entry);
  if (!is_wanted) return;
  if (is_here) return reports_->mailbox->deliver(std::move(entry));
  reports_->mailbox->forget(peer_, entry.tag);  // whoever waits for it learns which rank is lost
}

nccl::Communicator& Line::path_in() {
  if (!in_) throw InternalError("a message by NCCL has come before its communicator");
  while (!in_->wait_until_connected(Clock::now() + std::chrono::milliseconds(20))) {
    if (socket_.is_hung_up()) throw Closed(peer_);
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

/// What comes next cannot be received, though the other rank may be well: a failed device makes anything fail.
void Line::give_up_or_lose(const std::exception_ptr& failure) {
  const std::string who = "rank " + std::to_string(own_.value);
  if (const auto error = nccl_ ? nccl::error_of(nccl_->device()) : std::nullopt) return give_up(who + ": " + *error);
  try {
    std::rethrow_exception(failure);
  } catch (const wire::OutOfMemory& error) {
    give_up(error.what());
  } catch (const std::bad_alloc&) {
    give_up(who + " is out of memory: it has no room for a message from rank " + std::to_string(peer_.value));
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    give_up(who + ": " + text.substr(0, text.find('\n')));
  } catch (const std::exception& error) {  // NCCL may learn of a death a moment before the connection does
    constexpr auto kMoment = std::chrono::milliseconds(200);
    const auto until = Clock::now() + kMoment;
    while (!socket_.is_hung_up() && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lose(socket_.is_hung_up() ? kEnded : kUnreadable, error.what());
  }
}

/// Breaks the connection off, because what comes next cannot be received. The other rank learns why before it does.
void Line::give_up(const std::string& text) {
  reports_->give_up(text);
  constexpr auto kPatience = std::chrono::seconds(1);
  (void)wait_until_sent(Clock::now() + kPatience);
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    is_sending_over_ = true;
    changed_.notify_all();
  }
  socket_.break_off();
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

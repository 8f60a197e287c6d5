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
#include "words_of.h"

namespace stagecraft::sockets {
namespace {

constexpr const char* kEnded = " has ended in the middle of the run: it was killed, crashed or called exit";
constexpr const char* kUnreadable = " cannot send to this rank any more";

/// The other rank has closed its end of the connection.
class Closed : public TransportError {
 public:
  explicit Closed(RankId peer) : TransportError("the connection was closed", peer) {}
};

/// Whether NCCL brings it.
bool is_shipped(const wire::TensorForm& form) { return !form.is_on_host && !form.is_meta && form.bytes() > 0; }

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
    while (receive_frame()) continue;
  } catch (const Closed& error) {
    lose(kEnded, error);
  } catch (const std::system_error& error) {
    const bool is_cut_off = error.code() == std::errc::timed_out || error.code() == std::errc::host_unreachable ||
                            error.code() == std::errc::network_unreachable;
    lose(is_cut_off ? " is out of reach: its host or the network to it is gone" : kEnded, error);
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

bool Line::receive_frame() {
  Head head{};
  need(&head, sizeof head);
  if (head.kind == static_cast<std::uint32_t>(Kind::kGoodbye)) return false;
  if (head.kind == static_cast<std::uint32_t>(Kind::kCommunicator)) {
    std::string id(head.size, '\0');
    need(id.data(), id.size());
    if (!nccl_) throw TransportError("it sends by NCCL, which this rank does not have", peer_);
    if (!is_without_nccl_) in_ = nccl_->connect(id, {peer_, own_}, 1, nccl::Use::kMessages);
  } else if (head.kind == static_cast<std::uint32_t>(Kind::kRelease)) {
    const std::lock_guard lock(mutex_);
    is_released_ = true;
    changed_.notify_all();
  } else {
    take_in(head.size);
  }
  return true;
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
    has_heard_why_ = has_heard_why_ || *envelope.notice == Notice::Kind::kGiveUp ||
                     (*envelope.notice == Notice::Kind::kDepart && envelope.about >= 0);
    return reports_->hear(peer_, {*envelope.notice, envelope.step, envelope.about, envelope.header});
  }
  wire::look_up_description(known_, envelope);
  if (is_without_nccl_) {
    for (const wire::TensorForm& form : envelope.description->tensors) {
      if (!is_shipped(form) && !form.is_inline) skip(static_cast<std::size_t>(form.bytes()));
    }
    return;
  }
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
  const std::vector<wire::TensorForm>& forms = entry.envelope.description->tensors;
  const auto make = [&](const wire::TensorForm& form, at::Device device) {
    const at::Tensor made = at::empty(form.sizes, at::TensorOptions().dtype(form.type).device(device));
    return form.strides.empty() ? made : made.as_strided(form.sizes, form.strides);
  };
  for (const wire::TensorForm& form : forms) {
    at::Tensor& tensor = entry.tensors.emplace_back();
    if (!form.is_defined || is_shipped(form)) continue;
    const std::int64_t bytes = form.bytes();
    try {
      tensor = make(form, form.is_meta ? at::kMeta : at::kCPU);
    } catch (const std::exception& error) {
      entry.failure = std::make_exception_ptr(wire::OutOfMemory(own_, peer_, entry.envelope, &form, error));
    }
    if (bytes == 0) continue;
    if (form.is_inline) {
      if (tensor.defined()) std::memcpy(tensor.data_ptr(), inline_data, static_cast<std::size_t>(bytes));
      inline_data += bytes;
    } else if (!tensor.defined()) {
      skip(static_cast<std::size_t>(bytes));
    } else {
      need(tensor.data_ptr(), static_cast<std::size_t>(bytes));
    }
  }
  // What NCCL brings comes last: if it fails, the next frame can be read all the same.
  if (std::none_of(forms.begin(), forms.end(), is_shipped)) return true;
  nccl::Communicator& path = path_in();
  std::vector<at::Tensor> shipped;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    if (!is_shipped(forms[i])) continue;
    const c10::StreamGuard guard(path.stream());
    try {
      shipped.push_back(entry.tensors[i] = make(forms[i], nccl_->device()));
    } catch (const std::exception& error) {
      throw wire::OutOfMemory(own_, peer_, entry.envelope, &forms[i], error);  // what NCCL has begun it cannot drop
    }
  }
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
    give_up(who + ": " + words_of(error));
  } catch (const TransportError& error) {  // NCCL may learn of a failure a moment before the connection tells of it
    constexpr auto kMoment = std::chrono::milliseconds(1500);
    if (!hears_why(Clock::now() + kMoment)) lose(socket_.is_hung_up() ? kEnded : kUnreadable, error);
  } catch (const std::exception& error) {
    lose(kUnreadable, error);
  }
}

/// Reads on without NCCL: a rank whose device has failed first breaks off NCCL, which may take a second, and then says
/// why the run is over. Returns whether it has said so by then; if so, after its goodbye.
bool Line::hears_why(Clock::time_point until) {
  is_without_nccl_ = true;
  reports_->mailbox->forget(peer_);
  const auto comes_more = [&] {
    return has_heard_why_ || (Clock::now() < until && (begin_ != end_ || socket_.wait_to_read(until)));
  };
  try {
    while (comes_more() && receive_frame()) continue;
  } catch (const std::exception&) {  // the connection has ended
    return has_heard_why_;
  }
  return has_heard_why_;
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

void Line::lose(const std::string& what, const std::exception& why) {
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
  reports_->lose(peer_, who + what + " (" + words_of(why) + ")");
}

}  // namespace stagecraft::sockets

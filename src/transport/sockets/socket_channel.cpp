#include "socket_channel.h"

#include <algorithm>
#include <thread>

#include "nccl/nccl_group.h"
#include "nccl/recovery.h"
#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft::sockets {

struct SocketChannel::Ears {
  std::mutex mutex;
  Listener listener;
  Events events;
  std::vector<std::weak_ptr<Line>> lines;

  void hear(RankId from, const Notice& notice) {
    Listener own;
    {
      const std::lock_guard lock(mutex);
      own = listener;
    }
    if (!own) return;
    const std::optional<Notice> answer = own(from, notice);
    if (!answer) return;
    if (const auto line = lines[from.index()].lock()) line->send(to_envelope(*answer), {});
  }
  /// Under the lock: the channel is not destroyed while it is told of a loss.
  void report_loss(RankId rank, const std::string& text) {
    const std::lock_guard lock(mutex);
    if (events.lose) events.lose(rank, text);
  }
  bool know_of_a_failure() {
    const std::lock_guard lock(mutex);
    return events.has_any_failed && events.has_any_failed();
  }
  void give_up(const std::string& text) {
    const std::lock_guard lock(mutex);
    if (events.give_up) events.give_up(text);
  }

  static wire::Envelope to_envelope(const Notice& notice) {
    wire::Envelope envelope;
    envelope.notice = notice.kind;
    envelope.step = notice.step;
    envelope.about = notice.about;
    envelope.header = notice.text;
    return envelope;
  }
};

SocketChannel::SocketChannel(RankId rank, std::vector<Socket> sockets, std::optional<at::Device> device,
                             std::shared_ptr<nccl::Watch> nccl, std::function<void()> while_waiting)
    : rank_(rank),
      ranks_(static_cast<int>(sockets.size())),
      device_(device),
      while_waiting_(std::move(while_waiting)),
      nccl_(std::move(nccl)),
      mailbox_(std::make_shared<wire::Mailbox>()),
      ears_(std::make_shared<Ears>()) {
  const auto reports = std::make_shared<Line::Reports>(
      Line::Reports{mailbox_,
                    [ears = ears_, mailbox = mailbox_](RankId from, const Notice& notice) {
                      ears->hear(from, notice);
                      mailbox->wake();
                    },
                    [ears = ears_](RankId lost, const std::string& text) { ears->report_loss(lost, text); },
                    [ears = ears_] { return ears->know_of_a_failure(); },
                    [ears = ears_](const std::string& text) { ears->give_up(text); }});
  for (int r = 0; r < ranks_; ++r) {
    Socket& socket = sockets[RankId(r).index()];
    const bool is_own = RankId(r) == rank_;
    lines_.push_back(is_own ? nullptr : std::make_shared<Line>(std::move(socket), rank_, RankId(r), reports, nccl_));
    ears_->lines.emplace_back(lines_.back());
  }
}

SocketChannel::~SocketChannel() {
  say_goodbye();
  const std::lock_guard lock(ears_->mutex);
  ears_->events = {};
}

void SocketChannel::start(Events events) {
  ears_->events = std::move(events);
  for (const auto& line : lines_) {
    if (line) line->start();
  }
}

void SocketChannel::say_goodbye() {
  {
    const std::lock_guard lock(ears_->mutex);
    ears_->events.lose = nullptr;
    ears_->events.give_up = nullptr;
  }
  for (const auto& line : lines_) {
    if (line) line->say_goodbye();
  }
}

void SocketChannel::listen(Listener listener) {
  const std::lock_guard lock(ears_->mutex);
  ears_->listener = std::move(listener);
}

void SocketChannel::send(RankId to, const Tag& tag, Message message, std::uint64_t step) {
  wire::Envelope envelope;
  envelope.step = step;
  envelope.tag = tag;
  envelope.header = std::move(message.header);
  if (to != rank_) return lines_[to.index()]->send(std::move(envelope), std::move(message));
  std::vector<wire::SparseForm> sparse = wire::take_apart(message.tensors);
  wire::find_description({}, envelope, message, std::move(sparse));
  wire::Mailbox::Entry entry{rank_, tag, step, std::move(envelope), std::move(message.tensors)};
  for (const at::Tensor& tensor : entry.tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta() || entry.written) continue;
    entry.written.emplace(tensor.device().type()).record(current_stream(tensor.device()));
  }
  mailbox_->deliver(std::move(entry));
}

std::optional<Message> SocketChannel::take(RankId from, const Tag& tag) {
  std::optional<wire::Mailbox::Entry> entry = mailbox_->take(from, tag);
  if (!entry) return std::nullopt;
  if (entry->failure) std::rethrow_exception(entry->failure);
  // An empty tensor of a device says that its sender has read what it got. It got copies: what counts is that they are
  // made.
  const auto says_so = [](const wire::TensorForm& form) {
    return form.is_defined && !form.is_on_host && !form.is_meta && form.bytes() == 0;
  };
  const std::vector<wire::TensorForm>& forms = entry->envelope.description->tensors;
  if (nccl_ && from != rank_ && std::any_of(forms.begin(), forms.end(), says_so))
    lines_[from.index()]->wait_for_reads();
  if (entry->written) entry->written->block(current_stream(entry->written->device()));
  for (const at::Tensor& tensor : entry->tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) continue;
    c10::impl::VirtualGuardImpl(tensor.device().type())
        .recordDataPtrOnStream(tensor.storage().data_ptr(), current_stream(tensor.device()));
  }
  return wire::to_message(std::move(entry->envelope), std::move(entry->tensors), device_);
}

void SocketChannel::end_step(std::uint64_t next, bool failed) {
  if (failed) mailbox_->drop_before(next);
}

void SocketChannel::tell(RankId to, const Notice& notice) {
  if (to != rank_) return lines_[to.index()]->send(Ears::to_envelope(notice), {});
  ears_->hear(rank_, notice);
  mailbox_->wake();
}

void SocketChannel::wait_for_news(std::uint64_t seen, Clock::time_point since, Clock::time_point until) {
  constexpr auto kOften = std::chrono::milliseconds(100);
  // A message often comes within microseconds, sooner than a sleeping thread wakes up. Others that need the core get
  // it.
  constexpr auto kSpin = std::chrono::microseconds(100);
  while (Clock::now() - since < kSpin) {
    if (news() != seen || Clock::now() >= until) return;
    std::this_thread::yield();
  }
  if (!while_waiting_) return mailbox_->wait_for_news(seen, until);
  const auto now = Clock::now();
  if (now - since >= kOften) while_waiting_();
  mailbox_->wait_for_news(seen, std::min<Clock::time_point>(until, now + kOften));
}

std::unique_ptr<Group> SocketChannel::make_group(Transport& transport, const std::vector<RankId>& members,
                                                 std::int32_t id, Timeout timeout, const std::string& name) {
  if (!nccl_ || members.size() < 2) return nullptr;
  return std::make_unique<nccl::NcclGroup>(transport, nccl_, members, id, timeout, name);
}

void SocketChannel::recover(Transport& transport, Timeout timeout) {
  if (nccl_) nccl::recover(transport, *nccl_, timeout);
}

}  // namespace stagecraft::sockets

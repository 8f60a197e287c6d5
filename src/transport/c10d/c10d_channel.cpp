#include "c10d_channel.h"

#include <algorithm>
#include <thread>

#include "stagecraft/core/error.h"

namespace stagecraft::c10d_transport {

struct C10dChannel::Ears {
  std::mutex mutex;
  Listener listener;
  Loss lose;
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
    if (lose) lose(rank, text);
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

C10dChannel::C10dChannel(const GroupPtr& group, int tag, std::optional<at::Device> device,
                         std::function<void()> while_waiting)
    : rank_(group->getRank()),
      ranks_(group->getSize()),
      device_(device),
      while_waiting_(std::move(while_waiting)),
      mailbox_(std::make_shared<wire::Mailbox>()),
      ears_(std::make_shared<Ears>()) {
  const auto reports = std::make_shared<Line::Reports>(
      Line::Reports{mailbox_,
                    [ears = ears_, mailbox = mailbox_](RankId from, const Notice& notice) {
                      ears->hear(from, notice);
                      mailbox->wake();
                    },
                    [ears = ears_](RankId rank, const std::string& text) { ears->report_loss(rank, text); }});
  for (int r = 0; r < ranks_; ++r) {
    lines_.push_back(RankId(r) == rank_ ? nullptr : std::make_shared<Line>(group, RankId(r), tag, reports));
    ears_->lines.emplace_back(lines_.back());
  }
}

C10dChannel::~C10dChannel() { say_goodbye(); }

void C10dChannel::start(Loss lose) {
  ears_->lose = std::move(lose);
  for (const auto& line : lines_) {
    if (line) line->start();
  }
}

void C10dChannel::say_goodbye() {
  {
    const std::lock_guard lock(ears_->mutex);
    ears_->lose = nullptr;
  }
  for (const auto& line : lines_) {
    if (line) line->say_goodbye();
  }
}

void C10dChannel::listen(Listener listener) {
  const std::lock_guard lock(ears_->mutex);
  ears_->listener = std::move(listener);
}

void C10dChannel::send(RankId to, const Tag& tag, Message message, std::uint64_t step) {
  wire::Envelope envelope;
  envelope.step = step;
  envelope.tag = tag;
  envelope.header = std::move(message.header);
  if (to != rank_) return lines_[to.index()]->send(std::move(envelope), std::move(message));
  std::vector<wire::SparseForm> sparse = wire::take_apart(message.tensors);
  wire::find_description({}, envelope, message, std::move(sparse));
  mailbox_->deliver({rank_, tag, step, std::move(envelope), std::move(message.tensors)});
}

std::optional<Message> C10dChannel::take(RankId from, const Tag& tag) {
  std::optional<wire::Mailbox::Entry> entry = mailbox_->take(from, tag);
  if (!entry) return std::nullopt;
  return wire::to_message(std::move(entry->envelope), std::move(entry->tensors), device_);
}

void C10dChannel::end_step(std::uint64_t next, bool failed) {
  if (failed) mailbox_->drop_before(next);
}

void C10dChannel::tell(RankId to, const Notice& notice) {
  if (to != rank_) return lines_[to.index()]->send(Ears::to_envelope(notice), {});
  ears_->hear(rank_, notice);
  mailbox_->wake();
}

void C10dChannel::wait_for_news(std::uint64_t seen, Clock::time_point since, Clock::time_point until) {
  constexpr auto kOften = std::chrono::milliseconds(100);
  // A message often comes within microseconds, sooner than a sleeping thread wakes up. Others that need the core get it.
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

}  // namespace stagecraft::c10d_transport

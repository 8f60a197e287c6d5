#include <ATen/ATen.h>

#include <atomic>

#include "c10d_channel.h"
#include "coordinator.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/identity.h"
#include "stagecraft/transport/c10d.h"

namespace stagecraft {
namespace {

using c10d_transport::C10dChannel;
using c10d_transport::Line;
using Clock = std::chrono::steady_clock;

// Far from the tags that programs use: 0, or a small number.
constexpr int kFirstTag = 0x5c000000;
constexpr int kTagPairs = 1 << 20;

/// A pair of tags that no world of these ranks has had: receives that a world has left behind would take the messages
/// of the next one. Also compares the versions of all ranks. All of them call it.
int agree_on_tag(::c10d::ProcessGroup& group) {
  static std::atomic<std::int64_t> last = 0;
  std::int64_t version_code = 0;
  for (const char letter : version()) version_code = version_code * 131 + static_cast<unsigned char>(letter);
  // The largest number, and the largest and smallest version, by one maximum.
  std::vector<at::Tensor> tensors{at::tensor({last.load() + 1, version_code, -version_code}, at::kLong)};
  try {
    ::c10d::AllreduceOptions options;
    options.reduceOp = ::c10d::ReduceOp::MAX;
    group.allreduce(tensors, options)->wait();
  } catch (const c10::Error& error) {
    throw TransportError(std::string("the process group cannot exchange tensors of the host: ") +
                             error.what_without_backtrace() + "; make it with a backend for the CPU, such as gloo",
                         RankId(group.getRank()));
  } catch (const std::exception& error) {
    throw TransportError(std::string("not all ranks of the process group have come to make a world: ") + error.what(),
                         RankId(group.getRank()));
  }
  const auto* agreed = tensors[0].const_data_ptr<std::int64_t>();
  if (agreed[1] != -agreed[2]) {
    throw TransportError("the ranks run different versions of Stagecraft, this one " + std::string(version()) +
                             ": install the same everywhere",
                         RankId(group.getRank()));
  }
  last = agreed[0];
  return kFirstTag + 2 * static_cast<int>(agreed[0] % kTagPairs);
}

}  // namespace

class C10dConnection::Implementation {
 public:
  C10dChannel* channel = nullptr;  // owned by the transport
  std::vector<std::shared_ptr<Line>> lines;
  bool has_left = false;
};

C10dConnection::C10dConnection(c10::intrusive_ptr<::c10d::ProcessGroup> group, Options options)
    : implementation_(std::make_unique<Implementation>()) {
  const int tag = agree_on_tag(*group);
  auto channel = std::make_unique<C10dChannel>(group, tag, options.device, std::move(options.while_waiting));
  implementation_->channel = channel.get();
  for (const auto& line : channel->lines()) {
    if (line) implementation_->lines.push_back(line);
  }
  transport_ = std::make_shared<Transport>(std::move(channel), std::move(options.activity));
  implementation_->channel->start([coordinator = &transport_->coordinator()](RankId rank, const std::string& text) {
    coordinator->lose(rank, text);
  });
}

C10dConnection::~C10dConnection() { leave(std::nullopt, std::chrono::seconds(5)); }

void C10dConnection::leave(const std::optional<std::string>& failure, Timeout patience) {
  if (implementation_->has_left) return;
  implementation_->has_left = true;
  transport_->depart(failure);
  implementation_->channel->say_goodbye();
  const auto until = Clock::now() + patience;
  for (const auto& line : implementation_->lines) {
    if (!line->wait_until_sent(until)) return;
  }
}

bool C10dConnection::wait_for_others(Timeout patience) {
  const auto until = Clock::now() + patience;
  for (const auto& line : implementation_->lines) {
    if (!line->wait_until_over(until)) return false;
  }
  return true;
}

}  // namespace stagecraft

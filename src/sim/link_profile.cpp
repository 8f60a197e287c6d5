#include "link_profile.h"

#include <algorithm>
#include <cmath>

#include "stagecraft/core/measurement.h"

namespace stagecraft::detail {
namespace {

constexpr double kVeryDifferent = 2;  // ratio of sizes from which latency and bandwidth are told apart

double smallest_delay(const std::vector<RecordedMessage>& messages) {
  double smallest = HUGE_VAL;
  for (const RecordedMessage& message : messages) smallest = std::min(smallest, message.delay());
  return std::max(0.0, smallest);
}

bool had_arrived(const RecordedMessage& message, double delay) { return message.sent + delay < message.asked; }

/// Sizes and delays of the messages that a consumer waited for, in one range of sizes.
struct Waits {
  std::vector<double> bytes;
  std::vector<double> delays;
};

}  // namespace

void LinkProfile::add(const RecordedMessage& message) {
  links_[{message.from.value, message.to.value}].messages.push_back(message);
}

void LinkProfile::close() {
  for (auto& [ends, link] : links_) {
    std::vector<double> delays;
    for (const RecordedMessage& message : link.messages) {
      if (message.was_late()) delays.push_back(message.delay());
    }
    // The delay of a message that no consumer waited for is only an upper bound.
    link.delay = delays.empty() ? smallest_delay(link.messages) : median(delays);
    std::vector<double> takings;
    for (const RecordedMessage& message : link.messages) {
      if (had_arrived(message, link.delay)) takings.push_back(message.waited);
    }
    link.handling = std::min(median(takings), link.delay);
  }
}

double LinkProfile::handling(const RecordedMessage& message) const {
  const Link& link = links_.at({message.from.value, message.to.value});
  if (had_arrived(message, link.delay)) return message.waited;
  return std::min(link.handling, message.waited);
}

/// Fits a line through the medians of small and of large messages. Reports unlimited bandwidth when large messages are
/// not clearly slower.
LinkCosts LinkProfile::costs_of(const Link& link) {
  LinkCosts costs{.latency = std::max(0.0, link.delay - link.handling), .bandwidth = 0};
  double least = HUGE_VAL;
  double most = 0;
  for (const RecordedMessage& message : link.messages) {
    if (!message.was_late()) continue;
    least = std::min(least, static_cast<double>(message.bytes));
    most = std::max(most, static_cast<double>(message.bytes));
  }
  if (most <= kVeryDifferent * least) return costs;
  const double border = std::sqrt(std::max(least, 1.0) * most);
  Waits small;
  Waits large;
  for (const RecordedMessage& message : link.messages) {
    if (!message.was_late()) continue;
    Waits& range = static_cast<double>(message.bytes) < border ? small : large;
    range.bytes.push_back(static_cast<double>(message.bytes));
    range.delays.push_back(message.delay());
  }
  const double longer = median(large.delays) - median(small.delays);
  if (longer <= median(small.delays)) return costs;  // a smaller difference may be noise
  costs.bandwidth = (median(large.bytes) - median(small.bytes)) / longer;
  costs.latency = std::max(0.0, median(small.delays) - median(small.bytes) / costs.bandwidth - link.handling);
  return costs;
}

void LinkProfile::write(Costs& costs) const {
  std::vector<double> latencies;
  for (const auto& [ends, link] : links_) {
    costs.links.push_back({RankId(ends.first), RankId(ends.second), costs_of(link)});
    latencies.push_back(costs.links.back().costs.latency);
  }
  costs.link.latency = median(latencies);
}

}  // namespace stagecraft::detail

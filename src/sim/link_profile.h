#pragma once

#include <map>
#include <vector>

#include "recorded_step.h"
#include "stagecraft/sim/costs.h"

namespace stagecraft::detail {

/// Costs of messages by link: transfer time, and the time to receive a message that has already arrived. Call `add` for
/// all messages, then `close`, then the others.
class LinkProfile {
 public:
  void add(const RecordedMessage& message);
  void close();

  /// The part of a message's wait that is receive overhead: it would remain had the message arrived earlier.
  [[nodiscard]] double handling(const RecordedMessage& message) const;
  /// Sets `link` and `links`.
  void write(Costs& costs) const;

 private:
  struct Link {
    std::vector<RecordedMessage> messages;
    double delay = 0;     // median of messages that a consumer waited for
    double handling = 0;  // median of messages that had arrived before
  };

  static LinkCosts costs_of(const Link& link);

  std::map<std::pair<std::int32_t, std::int32_t>, Link> links_;  // by sender and receiver
};

}  // namespace stagecraft::detail

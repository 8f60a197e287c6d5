#pragma once

#include <map>
#include <vector>

#include "recorded_step.h"
#include "stagecraft/sim/costs.h"

namespace stagecraft::detail {

/// What messages cost, link by link: their way, and what a rank does to take one that is already there. First `add`
/// all, then `close`, then the rest.
class LinkProfile {
 public:
  void add(const RecordedMessage& message);
  void close();

  /// The part of its wait that a message costs its rank even when it need not wait.
  [[nodiscard]] double handling(const RecordedMessage& message) const;
  /// Sets `link` and `links`.
  void write(Costs& costs) const;

 private:
  struct Link {
    std::vector<RecordedMessage> messages;
    double delay = 0;     // of messages that were waited for
    double handling = 0;  // of messages that had arrived
  };

  static LinkCosts costs_of(const Link& link);

  std::map<std::pair<std::int32_t, std::int32_t>, Link> links_;  // by sender and receiver
};

}  // namespace stagecraft::detail

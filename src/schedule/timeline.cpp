#include "stagecraft/schedule/timeline.h"

#include <algorithm>
#include <limits>

namespace stagecraft {

std::vector<OwnTime> own_times(const Timeline& timeline) {
  const auto begin_of = [&](std::size_t i) { return timeline[i].start + timeline[i].waited; };
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < timeline.size(); ++i) {
    if (!timeline[i].beside) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return begin_of(a) < begin_of(b); });
  std::vector<OwnTime> times(timeline.size());
  double end = std::numeric_limits<double>::lowest();  // of all before
  for (const std::size_t i : order) {
    const Span& span = timeline[i];
    times[i] = {.waited = std::max(0.0, begin_of(i) - std::max(span.start, end)),
                .worked = std::max(0.0, span.end - std::max(begin_of(i), end))};
    end = std::max(end, span.end);
  }
  return times;
}

}  // namespace stagecraft

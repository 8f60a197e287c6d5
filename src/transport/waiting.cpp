#include "waiting.h"

namespace stagecraft {
namespace {

std::string waited(RankId own, Timeout timeout, const std::string& what) {
  return "rank " + std::to_string(own.value) + " waited " + std::to_string(timeout.count()) + " ms for " + what;
}

}  // namespace

TransportError no_such_rank(RankId rank, int ranks) {
  return {"there is no rank " + std::to_string(rank.value) + ": the world has ranks 0 to " + std::to_string(ranks - 1),
          rank};
}

std::string message_text(RankId from, const Tag& tag) {
  return to_text(tag) + " from rank " + std::to_string(from.value);
}

std::string step_end_text(const std::vector<RankId>& missing) {
  std::string text = "the end of the step on rank ";
  for (std::size_t i = 0; i < missing.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(missing[i].value);
  return text;
}

TimeoutError message_timeout(RankId own, RankId from, const Tag& tag, Timeout timeout) {
  return {waited(own, timeout, message_text(from, tag)) +
              ", which did not send it: look at what that rank does, or allow more time",
          from};
}

TimeoutError step_end_timeout(RankId own, const std::vector<RankId>& missing, Timeout timeout) {
  return {waited(own, timeout, step_end_text(missing)) +
              ": every rank calls step the same number of times; look at what it does, or allow more time",
          missing.front()};
}

}  // namespace stagecraft

#include "standing_text.h"

#include <sstream>

// Format: a line with is_resting and the activity, then a line for each wait.

namespace stagecraft {

std::string encode(const Standing& standing) {
  std::ostringstream out;
  out << standing.is_resting << ' ' << standing.activity << '\n';
  for (const Wait& wait : standing.waits) {
    out << wait.is_settling << ' ' << wait.is_main << ' ' << wait.from.value << ' ' << static_cast<int>(wait.tag.kind)
        << ' ' << wait.tag.from.value << ' ' << wait.tag.to.value << ' ' << wait.tag.microbatch.value << '\n';
  }
  return out.str();
}

Standing decode_standing(const std::string& text) {
  std::istringstream in(text);
  Standing standing;
  in >> standing.is_resting;
  in.get();
  std::getline(in, standing.activity);
  Wait wait;
  int kind = 0;
  while (in >> wait.is_settling >> wait.is_main >> wait.from.value >> kind >> wait.tag.from.value >>
         wait.tag.to.value >> wait.tag.microbatch.value) {
    wait.tag.kind = static_cast<MessageKind>(kind);
    standing.waits.push_back(wait);
  }
  return standing;
}

}  // namespace stagecraft

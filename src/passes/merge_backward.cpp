// An I and the W right after it cost two walks over the graph where one B costs a single walk: where nothing stands
// between them, splitting bought nothing.

#include "stagecraft/passes/pass.h"

namespace stagecraft {
namespace {

bool merges_with(const Action& input, const Action& weight) {
  return input.kind() == ActionKind::kBackwardInput && weight.kind() == ActionKind::kBackwardWeight &&
         input.stage() == weight.stage() && input.microbatch() == weight.microbatch();
}

}  // namespace

void merge_backward(Schedule& schedule) {
  for (Row& row : schedule.rows) {
    std::erase_if(row, [](const Action& action) { return action.is_idle(); });
    std::size_t kept = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i + 1 < row.size() && merges_with(row[i], row[i + 1])) {
        row[kept++] = Action::backward(row[i].stage(), row[i].microbatch());
        ++i;
      } else {
        row[kept++] = row[i];
      }
    }
    row.resize(kept);
  }
}

}  // namespace stagecraft

// An I and a W take two traversals of the autograd graph, a B takes one. If nothing runs between the two, splitting the
// backward gains nothing.

#include "rewrite.h"

namespace stagecraft {
namespace {

bool merges_with(const Action& input, const Action& weight) {
  return input.kind() == ActionKind::kBackwardInput && weight.kind() == ActionKind::kBackwardWeight &&
         input.stage() == weight.stage() && input.microbatch() == weight.microbatch();
}

void merge(Schedule& schedule) {
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

}  // namespace

extern const detail::Rewrite detail::merge_backward_rewrite = {
    .pass = {.name = "merge_backward", .summary = "an I followed by its own W becomes one B"}, .apply = merge};

void merge_backward(Schedule& schedule) { detail::run(detail::merge_backward_rewrite, schedule); }

}  // namespace stagecraft

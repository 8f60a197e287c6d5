#include <algorithm>
#include <array>

#include "rewrite.h"
#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

using detail::Rewrite;

constexpr std::array kRewrites = {
    &detail::merge_backward_rewrite, &detail::unshard_reshard_rewrite, &detail::reduce_grad_rewrite,
    &detail::send_recv_rewrite,      &detail::defer_receives_rewrite,  &detail::place_receives_rewrite,
};

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string_view::npos ? std::string_view()
                                         : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

const Rewrite& find_rewrite(std::string_view name) {
  std::string known;
  for (const Rewrite* rewrite : kRewrites) {
    if (rewrite->pass.name == name) return *rewrite;
    known += (known.empty() ? "" : ", ") + std::string(rewrite->pass.name);
  }
  throw InvalidArgument("unknown pass '" + std::string(name) + "': the known ones are " + known);
}

}  // namespace

namespace detail {

void require_input_of(const Rewrite& rewrite, const Schedule& schedule) {
  const KindSet present = require_well_formed(schedule, rewrite.pass.name);
  if ((present & rewrite.refuses) != 0) throw_for_kind(schedule, rewrite.pass.name, rewrite.refuses, rewrite.remedy);
}

void run(const Rewrite& rewrite, Schedule& schedule) {
  require_input_of(rewrite, schedule);
  rewrite.apply(schedule);
}

}  // namespace detail

std::span<const Pass> passes() {
  static const auto kPasses = [] {
    std::array<Pass, kRewrites.size()> all;
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = kRewrites[i]->pass;
    return all;
  }();
  return kPasses;
}

const Pass& find_pass(std::string_view name) {
  const auto known = passes();
  const std::string_view found = find_rewrite(name).pass.name;
  return *std::find_if(known.begin(), known.end(), [&](const Pass& pass) { return pass.name == found; });
}

void run_passes(Schedule& schedule, std::string_view names) {
  std::vector<const Rewrite*> chain;
  while (!names.empty()) {
    const auto comma = names.find(',');
    chain.push_back(&find_rewrite(trimmed(names.substr(0, comma))));
    if (comma == std::string_view::npos) break;
    names.remove_prefix(comma + 1);
    if (names.empty()) find_pass("");  // a trailing comma: throws for the empty name
  }
  for (const Rewrite* rewrite : chain) {
    if (rewrite == chain.front()) {
      detail::require_input_of(*rewrite, schedule);
    } else if ((detail::kinds_in(schedule) & rewrite->refuses) != 0) {  // passes keep it well formed
      detail::throw_for_kind(schedule, rewrite->pass.name, rewrite->refuses, rewrite->remedy);
    }
    rewrite->apply(schedule);
  }
}

}  // namespace stagecraft

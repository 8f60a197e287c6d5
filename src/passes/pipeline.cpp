#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

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

/// A pass of a list, perhaps with a number: "unshard_reshard=2".
struct Chosen {
  const Rewrite* rewrite;
  std::optional<int> number;
};

Chosen chosen(std::string_view text) {
  const auto equals = text.find('=');
  const Rewrite& rewrite = find_rewrite(trimmed(text.substr(0, equals)));
  if (equals == std::string_view::npos) return {&rewrite, std::nullopt};
  const std::string_view digits = trimmed(text.substr(equals + 1));
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw InvalidArgument("the pass '" + std::string(text) + "' is followed by '" + std::string(digits) +
                          "', which is not a whole number");
  }
  if (rewrite.apply_with == nullptr) {
    throw InvalidArgument("the pass '" + std::string(rewrite.pass.name) +
                          "' takes no number: leave out '=" + std::string(digits) + "'");
  }
  return {&rewrite, number};
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
  const std::string_view found = chosen(name).rewrite->pass.name;
  return *std::find_if(known.begin(), known.end(), [&](const Pass& pass) { return pass.name == found; });
}

void run_passes(Schedule& schedule, std::string_view names) {
  std::vector<Chosen> chain;
  while (!names.empty()) {
    const auto comma = names.find(',');
    chain.push_back(chosen(trimmed(names.substr(0, comma))));
    if (comma == std::string_view::npos) break;
    names.remove_prefix(comma + 1);
    if (names.empty()) find_pass("");  // a trailing comma: throws for the empty name
  }
  for (const auto& [rewrite, number] : chain) {
    if (rewrite == chain.front().rewrite) {
      detail::require_input_of(*rewrite, schedule);
    } else if ((detail::kinds_in(schedule) & rewrite->refuses) != 0) {  // passes keep it well formed
      detail::throw_for_kind(schedule, rewrite->pass.name, rewrite->refuses, rewrite->remedy);
    }
    if (number) {
      rewrite->apply_with(schedule, *number);
    } else {
      rewrite->apply(schedule);
    }
  }
}

}  // namespace stagecraft

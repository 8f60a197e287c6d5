#include "stagecraft/training/parameter_groups.h"

#include <algorithm>
#include <set>

#include "stagecraft/core/error.h"
#include "stagecraft/core/name_pattern.h"
#include "stagecraft/core/text.h"
#include "stagecraft/runtime/together.h"

namespace stagecraft {
namespace {

/// What the rules did on one rank, as text for the others: a line per rule, and one per parameter that none fits.
struct Sorted {
  std::string patterns;              // one after the other, with their lengths
  std::vector<bool> fits, is_first;  // by rule: whether it fits a parameter, and is the first to do so
  std::vector<std::string> without_rule;

  [[nodiscard]] std::string text() const {
    std::string all = std::to_string(patterns.size()) + ' ' + patterns;
    for (std::size_t i = 0; i < fits.size(); ++i) all += is_first[i] ? '2' : fits[i] ? '1' : '0';
    for (const std::string& name : without_rule) all += '\0' + name;
    return all;
  }
};

Sorted read_sorted(const std::string& text) {
  Sorted sorted;
  const std::size_t space = text.find(' ');
  const std::size_t length = std::stoul(text.substr(0, space));
  sorted.patterns = text.substr(space + 1, length);
  std::size_t at = space + 1 + length;
  for (; at < text.size() && text[at] != '\0'; ++at) {
    sorted.fits.push_back(text[at] != '0');
    sorted.is_first.push_back(text[at] == '2');
  }
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\0', at + 1), text.size());
    sorted.without_rule.push_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  return sorted;
}

Faults faults_of(const std::vector<GroupRule>& rules, const std::vector<Sorted>& by_rank) {
  Faults faults;
  for (std::size_t r = 1; r < by_rank.size(); ++r) {
    if (by_rank[r].patterns == by_rank[0].patterns) continue;
    faults.add("rank " + std::to_string(r) + " has other rules than rank 0: give all ranks the same");
    return faults;
  }
  std::set<std::string> told;
  for (const Sorted& of_rank : by_rank) {
    for (const std::string& name : of_rank.without_rule) {
      if (!told.insert(name).second) continue;
      faults.add("no rule fits parameter " + in_quotes(name) + ": add one, such as '*' at the end");
    }
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const auto any = [&](const auto& flag) { return std::any_of(by_rank.begin(), by_rank.end(), flag); };
    if (any([&](const Sorted& of_rank) { return static_cast<bool>(of_rank.is_first[i]); })) continue;
    const bool fits = any([&](const Sorted& of_rank) { return static_cast<bool>(of_rank.fits[i]); });
    faults.add("pattern " + in_quotes(rules[i].pattern) +
               (fits ? " fits only parameters of earlier rules: put it before them"
                     : " fits no parameter of any rank: look at Pipeline::named_parameters"));
  }
  return faults;
}

}  // namespace

std::vector<torch::optim::OptimizerParamGroup> parameter_groups(World& world, const NamedTensors& parameters,
                                                                const std::vector<GroupRule>& rules) {
  std::vector<std::vector<at::Tensor>> members(rules.size());
  Sorted own{{}, std::vector<bool>(rules.size()), std::vector<bool>(rules.size()), {}};
  for (const GroupRule& rule : rules) own.patterns += std::to_string(rule.pattern.size()) + ' ' + rule.pattern + ' ';
  for (const auto& [name, parameter] : parameters) {
    std::size_t first = rules.size();
    for (std::size_t i = rules.size(); i-- > 0;) {
      if (!fits_pattern(rules[i].pattern, name)) continue;
      own.fits[i] = true;
      first = i;
    }
    if (first < rules.size()) own.is_first[first] = true;
    if (!parameter.requires_grad()) continue;
    if (first == rules.size()) {
      own.without_rule.push_back(name);
    } else {
      members[first].push_back(parameter);
    }
  }
  Faults faults;
  together(world, [&] {
    const auto during = world.everyone().during("the groups of parameters");
    std::vector<Sorted> by_rank;
    for (const std::string& text : world.everyone().all_gather(own.text())) by_rank.push_back(read_sorted(text));
    faults = faults_of(rules, by_rank);
  });
  if (!faults.empty()) throw InvalidArgument("the rules of parameter groups: " + faults.text());
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (std::size_t i = 0; i < rules.size(); ++i) groups.emplace_back(std::move(members[i]), rules[i].options->clone());
  return groups;
}

}  // namespace stagecraft

#include "loss_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "stagecraft/core/error.h"

namespace stagecraft::train {
namespace {

struct Known {
  std::string_view name;
  Criterion criterion;
};
constexpr std::array kKnown = {Known{"cross_entropy", Criterion::kCrossEntropy},
                               Known{"nll", Criterion::kNll},
                               Known{"mse", Criterion::kMse},
                               Known{"l1", Criterion::kL1},
                               Known{"huber", Criterion::kHuber},
                               Known{"bce", Criterion::kBce},
                               Known{"bce_with_logits", Criterion::kBceLogits},
                               Known{"kl", Criterion::kKl},
                               Known{"output", Criterion::kOutput}};

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

[[noreturn]] void refuse(std::string_view term, const std::string& why) {
  throw InvalidArgument("'" + std::string(term) + "' is no loss: " + why);
}

/// The terms of a sum. A + in parentheses or in the exponent of a number separates nothing.
std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '(') ++depth;
    if (i < text.size() && text[i] == ')') --depth;
    const bool is_exponent =
        i > 1 && (text[i - 1] == 'e' || text[i - 1] == 'E') && text[i - 2] >= '0' && text[i - 2] <= '9';
    if (i < text.size() && (text[i] != '+' || depth > 0 || is_exponent)) continue;
    parts.push_back(trimmed(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  return parts;
}

double weight_in(std::string_view text, std::string_view term) {
  double weight = 0;
  const auto [last, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  if (error != std::errc() || last != text.data() + text.size() || !std::isfinite(weight) || weight <= 0) {
    refuse(term, "the weight '" + std::string(text) + "' is not a number above 0");
  }
  return weight;
}

void read_names(std::string_view text, std::string_view term, LossTerm& into) {
  const std::size_t comma = text.find(',');
  into.output = trimmed(text.substr(0, comma));
  if (comma == std::string_view::npos) return;
  into.targets = trimmed(text.substr(comma + 1));
  if (into.targets.empty() || into.targets.find(',') != std::string::npos)
    refuse(term, "in parentheses it takes the names of an output and of the targets");
}

void read_criterion(std::string_view name, std::string_view term, LossTerm& into) {
  into.name = name;
  if (name.ends_with(".pt2")) {
    into.criterion = Criterion::kProgram;
    return;
  }
  std::string names;
  for (const Known& known : kKnown) {
    if (known.name == name) {
      into.criterion = known.criterion;
      return;
    }
    names += std::string(known.name) + ", ";
  }
  refuse(term, "there are " + names + "and exported functions of output and target, FILE.pt2");
}

LossTerm parse_term(std::string_view term) {
  LossTerm parsed;
  std::string_view rest = term;
  if (rest.ends_with(')')) {
    const std::size_t open = rest.rfind('(');
    if (open == std::string_view::npos) refuse(term, "a parenthesis is missing");
    read_names(rest.substr(open + 1, rest.size() - open - 2), term, parsed);
    rest = trimmed(rest.substr(0, open));
  }
  if (const std::size_t star = rest.find('*'); star != std::string_view::npos) {
    parsed.weight = weight_in(trimmed(rest.substr(0, star)), term);
    rest = trimmed(rest.substr(star + 1));
  }
  read_criterion(rest, term, parsed);
  return parsed;
}

}  // namespace

bool takes_classes(Criterion criterion) {
  return criterion == Criterion::kCrossEntropy || criterion == Criterion::kNll;
}

std::vector<LossTerm> parse_loss(const std::string& text) {
  std::vector<LossTerm> terms;
  for (const std::string_view part : parts_of(text)) terms.push_back(parse_term(part));
  return terms;
}

}  // namespace stagecraft::train

#include "part_order.h"

#include <fmt/format.h>

#include "stagecraft/core/error.h"

namespace stagecraft::detail {
namespace {

constexpr std::size_t kMostPairs = 3000;
constexpr double kMostExactParts = 1500;  // the transitive closure takes cubic time and quadratic memory

[[noreturn]] void refuse_exact(double stages, double microbatches, const std::string& why) {
  throw InvalidArgument(
      fmt::format("an exact plan of {:.0f} stages and {:.0f} microbatches {}: use fewer of both, about 4 ranks and 6 "
                  "microbatches, or plan without --exact",
                  stages, microbatches, why));
}

void check_exact_counts(double stages, double microbatches) {
  // Within a stage, the order of an F and the I and W of earlier microbatches is open, and so is that of an I and
  // earlier Ws.
  const double pairs = stages * 1.5 * microbatches * (microbatches - 1);
  if (pairs > static_cast<double>(kMostPairs)) {
    refuse_exact(stages, microbatches,
                 fmt::format("has at least {:.0f} orders to decide, more than {}", pairs, kMostPairs));
  }
  const double parts = 3 * stages * microbatches;
  if (parts > kMostExactParts) {
    refuse_exact(stages, microbatches, fmt::format("has {:.0f} F, I and W, more than {:.0f}", parts, kMostExactParts));
  }
}

}  // namespace

PartOrder::PartOrder(const Placement& placement, int microbatches)
    : stages_(static_cast<std::size_t>(placement.stages())),
      m_(static_cast<std::size_t>(microbatches)),
      parts_(3 * stages_ * m_) {
  check_exact_counts(placement.stages(), microbatches);
  for (int s = 0; s < placement.stages(); ++s) rank_of_.push_back(placement.rank_of(StageId(s)).value);
  find_implied();
  find_pairs();
}

void PartOrder::find_implied() {
  implied_.assign(parts_ * parts_, 0);
  for_each_edge([&](std::size_t a, std::size_t b) { implied_[a * parts_ + b] = 1; });
  for (std::size_t k = 0; k < parts_; ++k) {
    for (std::size_t a = 0; a < parts_; ++a) {
      if (implied_[a * parts_ + k] == 0) continue;
      for (std::size_t b = 0; b < parts_; ++b) implied_[a * parts_ + b] |= implied_[k * parts_ + b];
    }
  }
}

void PartOrder::find_pairs() {
  for (std::size_t a = 0; a < parts_; ++a) {
    for (std::size_t b = a + 1; b < parts_; ++b) {
      if (rank(a) == rank(b) && !implied(a, b) && !implied(b, a)) pairs_.emplace_back(a, b);
    }
  }
  if (pairs_.size() <= kMostPairs) return;
  refuse_exact(static_cast<double>(stages_), static_cast<double>(m_),
               fmt::format("has {} orders to decide, more than {}", pairs_.size(), kMostPairs));
}

std::vector<std::size_t> PartOrder::in_time(int rank_of_row, const std::vector<double>& middles) const {
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < parts_; ++i) {
    if (rank(i) == rank_of_row) left.push_back(i);
  }
  std::vector<std::size_t> blockers(parts_, 0);  // number of parts in `left` that must come before
  for (const std::size_t a : left) {
    for (const std::size_t b : left) blockers[b] += implied(a, b) ? 1 : 0;
  }
  std::vector<std::size_t> row;
  while (!left.empty()) {
    auto next = left.end();
    for (auto it = left.begin(); it != left.end(); ++it) {
      if (blockers[*it] == 0 && (next == left.end() || middles[*it] < middles[*next])) next = it;
    }
    const std::size_t taken = *next;
    left.erase(next);
    for (const std::size_t b : left) blockers[b] -= implied(taken, b) ? 1 : 0;
    row.push_back(taken);
  }
  return row;
}

}  // namespace stagecraft::detail

#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "problem.h"
#include "stagecraft/schedule/placement.h"

namespace stagecraft::detail {

inline constexpr std::array kParts = {Part::kForward, Part::kInput, Part::kWeight};

/// The partial order of all parts (F, I and W of every stage and microbatch, numbered from 0) of an exact program. It
/// follows from data dependencies and the order of microbatches. `pairs` are left for the solver to order.
class PartOrder {
 public:
  /// Throws InvalidArgument for a case too large for an exact solve; a far too large one is refused before any work.
  PartOrder(const Placement& placement, int microbatches);

  [[nodiscard]] std::size_t parts() const { return parts_; }
  [[nodiscard]] std::size_t id(Part part_of, std::size_t s, std::size_t j) const {
    return (static_cast<std::size_t>(part_of) * stages_ + s) * m_ + j;
  }
  [[nodiscard]] Part part(std::size_t i) const { return kParts[i / m_ / stages_]; }
  [[nodiscard]] std::size_t stage(std::size_t i) const { return i / m_ % stages_; }
  [[nodiscard]] std::size_t microbatch(std::size_t i) const { return i % m_; }
  [[nodiscard]] int rank(std::size_t i) const { return rank_of_[stage(i)]; }

  /// Whether a must come before b.
  [[nodiscard]] bool implied(std::size_t a, std::size_t b) const { return implied_[a * parts_ + b] != 0; }
  /// Pairs of parts of one rank whose order is not implied, the lower number first.
  [[nodiscard]] const std::vector<std::pair<std::size_t, std::size_t>>& pairs() const { return pairs_; }

  /// Calls `visit(before, after)` for every direct dependency: by data, or by the order of microbatches.
  template <typename Visit>
  void for_each_edge(Visit&& visit) const {
    for (std::size_t s = 0; s < stages_; ++s) {
      for (std::size_t j = 0; j < m_; ++j) {
        if (s + 1 < stages_) {
          visit(id(Part::kForward, s, j), id(Part::kForward, s + 1, j));
          visit(id(Part::kInput, s + 1, j), id(Part::kInput, s, j));
        } else {
          visit(id(Part::kForward, s, j), id(Part::kInput, s, j));
        }
        visit(id(Part::kInput, s, j), id(Part::kWeight, s, j));
        for (const Part part_of : kParts) {
          if (j + 1 < m_) visit(id(part_of, s, j), id(part_of, s, j + 1));
        }
      }
    }
  }

  /// The parts of one rank in topological order, by time where the order is open. `middles` are the middles of the
  /// parts; they are exact only to the solver's tolerance, so they alone would not give a valid order.
  [[nodiscard]] std::vector<std::size_t> in_time(int rank, const std::vector<double>& middles) const;

 private:
  void find_implied();
  void find_pairs();

  std::size_t stages_;
  std::size_t m_;
  std::size_t parts_;
  std::vector<int> rank_of_;  // by stage
  std::vector<char> implied_;
  std::vector<std::pair<std::size_t, std::size_t>> pairs_;
};

}  // namespace stagecraft::detail

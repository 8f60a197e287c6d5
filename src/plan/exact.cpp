// The mixed-integer program: a start time per part, an order (0 or 1) per pair of parts of one rank that nothing else
// orders, and the span, which is to be small.
//
// Microbatches of a stage go in order, which loses nothing: the k-th F of a stage needs k results of the stage before,
// so labels can be given in the order of time.

#include "stagecraft/plan/exact.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lower_bound.h"
#include "problem.h"
#include "solver.h"
#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

using detail::Part;
using detail::Problem;

constexpr std::size_t kMostPairs = 3000;
constexpr std::array kParts = {Part::kForward, Part::kInput, Part::kWeight};

class Program {
 public:
  Program(const Problem& problem, double known_span)
      : problem_(problem), m_(static_cast<std::size_t>(problem.microbatches)), known_span_(known_span) {
    parts_ = 3 * static_cast<std::size_t>(problem.stages) * m_;
    find_implied();
    find_pairs();
    find_bounds();
  }

  [[nodiscard]] std::size_t variables() const { return span() + 1; }

  [[nodiscard]] std::string text() {
    text_ = fmt::format("Minimize\n obj: x{}\nSubject To\n", span());
    write_flow();
    write_orders();
    write_memory();
    write_spans();
    text_ += fmt::format("Bounds\n {:.9g} <= x{} <= {:.9g}\n x0 = 0\n", detail::lower_bound(problem_) * (1 - 1e-9),
                         span(), known_span_ * (1 + 1e-7));
    for (std::size_t i = 1; i < parts_; ++i)
      text_ += fmt::format(" {:.9g} <= x{} <= {:.9g}\n", earliest_[i], i, latest_[i]);
    text_ += "Binaries\n";
    for (std::size_t i = 0; i < pairs_.size(); ++i) text_ += fmt::format(" x{}\n", parts_ + i);
    return text_ + "End\n";
  }

  /// The rows in the order of the solution's times.
  [[nodiscard]] Schedule schedule(const std::vector<double>& values) const {
    constexpr std::array kKinds = {ActionKind::kForward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight};
    Schedule schedule{"exact", problem_.placement, problem_.microbatches, {}};
    for (int r = 0; r < problem_.ranks; ++r) {
      std::vector<std::size_t> own;
      for (std::size_t i = 0; i < parts_; ++i) {
        if (rank(i) == r) own.push_back(i);
      }
      // Starts may coincide where an action takes no time: what is ordered anyway decides then.
      std::stable_sort(own.begin(), own.end(), [&](std::size_t a, std::size_t b) {
        if (std::abs(values[a] - values[b]) > 1e-7) return values[a] < values[b];
        return implied(a, b);
      });
      Row& row = schedule.rows.emplace_back();
      for (const std::size_t i : own) {
        row.emplace_back(kKinds[static_cast<std::size_t>(part(i))], StageId(stage(i)), MicrobatchId(i % m_));
      }
    }
    return schedule;
  }

 private:
  [[nodiscard]] std::size_t id(Part part_of, std::size_t s, std::size_t j) const {
    return (static_cast<std::size_t>(part_of) * static_cast<std::size_t>(problem_.stages) + s) * m_ + j;
  }
  [[nodiscard]] Part part(std::size_t i) const { return kParts[i / m_ / static_cast<std::size_t>(problem_.stages)]; }
  [[nodiscard]] std::size_t stage(std::size_t i) const { return i / m_ % static_cast<std::size_t>(problem_.stages); }
  [[nodiscard]] int rank(std::size_t i) const { return problem_.rank_of[stage(i)]; }
  [[nodiscard]] double cost(std::size_t i) const { return problem_.cost(part(i), stage(i)); }
  [[nodiscard]] std::size_t span() const { return parts_ + pairs_.size(); }
  [[nodiscard]] bool implied(std::size_t a, std::size_t b) const { return implied_[a * parts_ + b] != 0; }

  /// Calls `visit(before, after, hop)` for everything that data and the order of microbatches ask for.
  template <typename Visit>
  void for_each_edge(Visit&& visit) const {
    const auto stages = static_cast<std::size_t>(problem_.stages);
    for (std::size_t s = 0; s < stages; ++s) {
      for (std::size_t j = 0; j < m_; ++j) {
        if (s + 1 < stages) {
          visit(id(Part::kForward, s, j), id(Part::kForward, s + 1, j), problem_.hop_up[s]);
          visit(id(Part::kInput, s + 1, j), id(Part::kInput, s, j), problem_.hop_down[s + 1]);
        } else {
          visit(id(Part::kForward, s, j), id(Part::kInput, s, j), 0.0);
        }
        visit(id(Part::kInput, s, j), id(Part::kWeight, s, j), 0.0);
        for (const Part part_of : kParts) {
          if (j + 1 < m_) visit(id(part_of, s, j), id(part_of, s, j + 1), 0.0);
        }
      }
    }
  }

  void find_implied() {
    implied_.assign(parts_ * parts_, 0);
    for_each_edge([&](std::size_t a, std::size_t b, double) { implied_[a * parts_ + b] = 1; });
    for (std::size_t k = 0; k < parts_; ++k) {
      for (std::size_t a = 0; a < parts_; ++a) {
        if (implied_[a * parts_ + k] == 0) continue;
        for (std::size_t b = 0; b < parts_; ++b) implied_[a * parts_ + b] |= implied_[k * parts_ + b];
      }
    }
  }

  void find_pairs() {
    for (std::size_t a = 0; a < parts_; ++a) {
      for (std::size_t b = a + 1; b < parts_; ++b) {
        if (rank(a) == rank(b) && !implied(a, b) && !implied(b, a)) pairs_.emplace_back(a, b);
      }
    }
    if (pairs_.size() <= kMostPairs) return;
    throw InvalidArgument(
        fmt::format("an exact plan of {} stages and {} microbatches has {} orders to decide, more than "
                    "{}: use fewer of both, about 4 ranks and 6 microbatches, or plan without --exact",
                    problem_.stages, problem_.microbatches, pairs_.size(), kMostPairs));
  }

  void write_flow() {
    for_each_edge([&](std::size_t a, std::size_t b, double hop) {
      text_ += fmt::format(" x{} - x{} >= {:.9g}\n", b, a, cost(a) + hop);
    });
  }

  /// Earliest starts follow from the data flow; latest ones from the known span, which the rank of stage 0 (whose first
  /// F is at 0) must not exceed, and the others not after their own first F. Close bounds are what makes the solver
  /// fast.
  void find_bounds() {
    earliest_.assign(parts_, 0);
    std::vector<double> tail(parts_, -1);  // from a start to the end of the last part of stage 0's rank it leads to
    for (std::size_t i = 0; i < parts_; ++i) {
      if (rank(i) == problem_.rank_of[0]) tail[i] = cost(i);
    }
    for (bool changed = true; changed;) {
      changed = false;
      for_each_edge([&](std::size_t a, std::size_t b, double hop) {
        const double after = earliest_[a] + cost(a) + hop;
        const double before = tail[b] < 0 ? -1 : tail[b] + cost(a) + hop;
        changed = changed || after > earliest_[b] || before > tail[a];
        earliest_[b] = std::max(earliest_[b], after);
        tail[a] = std::max(tail[a], before);
      });
    }
    const double most = known_span_ * (1 + 1e-6);
    latest_.assign(parts_, 0);
    for (std::size_t i = 0; i < parts_; ++i) {
      const auto first = static_cast<std::size_t>(problem_.stages_of[static_cast<std::size_t>(rank(i))].front());
      const double own = most - tail[id(Part::kForward, first, 0)] + most - cost(i);
      latest_[i] = std::max(earliest_[i], tail[i] < 0 ? own : std::min(own, most - tail[i]));
    }
  }

  /// x = 1 means that the first of the pair comes first.
  void write_orders() {
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      const auto [a, b] = pairs_[i];
      const double first = std::max(0.0, latest_[a] + cost(a) - earliest_[b]);
      const double second = std::max(0.0, latest_[b] + cost(b) - earliest_[a]);
      text_ += fmt::format(" x{} - x{} - {:.9g} x{} >= {:.9g}\n", b, a, first, parts_ + i, cost(a) - first);
      text_ += fmt::format(" x{} - x{} + {:.9g} x{} >= {:.9g}\n", a, b, second, parts_ + i, cost(b));
    }
  }

  /// What a rank holds after each F, given which of its parts come before.
  void write_memory() {
    if (!std::isfinite(problem_.limit)) return;
    std::vector<std::string> terms(parts_);
    std::vector<double> fixed(parts_, 0);
    for (std::size_t f = 0; f < parts_; ++f) {
      if (part(f) != Part::kForward) continue;
      fixed[f] = problem_.activation[stage(f)];
      for (std::size_t a = 0; a < parts_; ++a) {
        if (a != f && rank(a) == rank(f) && implied(a, f)) fixed[f] += change(a);
      }
    }
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      const auto [a, b] = pairs_[i];
      if (part(b) == Part::kForward) terms[b] += fmt::format(" {:+.9g} x{}", change(a), parts_ + i);
      if (part(a) == Part::kForward) {
        terms[a] += fmt::format(" {:+.9g} x{}", -change(b), parts_ + i);
        fixed[a] += change(b);
      }
    }
    for (std::size_t f = 0; f < parts_; ++f) {
      if (terms[f].empty()) continue;
      text_ += fmt::format("{} <= {:.9g}\n", terms[f], problem_.limit - fixed[f] + 1e-6);
    }
  }

  [[nodiscard]] double change(std::size_t i) const {
    const std::size_t s = stage(i);
    if (part(i) == Part::kForward) return problem_.activation[s];
    if (part(i) == Part::kInput) return problem_.weight_gradient[s] - problem_.activation[s];
    return -problem_.weight_gradient[s];
  }

  void write_spans() {
    for (const std::vector<int>& own : problem_.stages_of) {
      if (own.empty()) continue;
      const std::size_t first = id(Part::kForward, static_cast<std::size_t>(own.front()), 0);
      for (const int s : own) {
        const std::size_t last = id(Part::kWeight, static_cast<std::size_t>(s), m_ - 1);
        text_ += fmt::format(" x{} - x{} + x{} >= {:.9g}\n", span(), last, first, cost(last));
      }
    }
  }

  const Problem& problem_;
  std::size_t m_;
  double known_span_;
  std::size_t parts_ = 0;
  std::vector<double> earliest_;
  std::vector<double> latest_;
  std::vector<char> implied_;
  std::vector<std::pair<std::size_t, std::size_t>> pairs_;
  std::string text_;
};

}  // namespace

ExactResult solve_exactly(const Costs& costs, const Placement& placement, int microbatches, double memory_limit,
                          double known_span, double seconds) {
  const Problem problem(costs, placement, microbatches, memory_limit);
  Program program(problem, known_span);
  const detail::Solution solution = detail::solve_lp(program.text(), program.variables(), seconds);
  if (!solution.found) {
    throw InvalidArgument(
        fmt::format("cbc found no schedule within {:g} s: give it more time, or plan without --exact", seconds));
  }
  ExactResult result;
  result.proven = solution.proven;
  result.schedule = program.schedule(solution.values);
  result.simulation = simulate(result.schedule, costs);
  return result;
}

}  // namespace stagecraft

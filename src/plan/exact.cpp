// The mixed-integer program. Variables: a start time per part, an order (0 or 1) per pair of parts of one rank that
// dependencies leave open, and the span, which is minimised.
//
// Microbatches of a stage run in order. This loses no optimum: the k-th F of a stage needs k results of the previous
// stage, so microbatches can be numbered in order of time.

#include "stagecraft/plan/exact.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "part_order.h"
#include "problem.h"
#include "solver.h"
#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

using detail::Part;
using detail::Problem;

constexpr double kSolverTolerance = 1e-5;  // relative error of a span: the solver's tolerance over a chain of parts

class Program {
 public:
  Program(const Problem& problem, double known_span)
      : problem_(problem),
        order_(problem.placement, problem.microbatches),
        m_(static_cast<std::size_t>(problem.microbatches)),
        known_span_(known_span),
        parts_(order_.parts()),
        pairs_(order_.pairs()) {
    find_bounds();
  }

  [[nodiscard]] std::size_t variables() const { return span() + 1; }

  [[nodiscard]] std::string text() {
    text_ = fmt::format("Minimize\n obj: x{}\nSubject To\n", span());
    write_flow();
    write_orders();
    write_memory();
    write_spans();
    text_ += fmt::format("Bounds\n {:.9g} <= x{} <= {:.9g}\n x0 = 0\n",
                         detail::lower_bound(problem_) * (1 - detail::kSame), span(), known_span_ * (1 + 1e-7));
    for (std::size_t i = 1; i < parts_; ++i)
      text_ += fmt::format(" {:.9g} <= x{} <= {:.9g}\n", earliest_[i], i, latest_[i]);
    text_ += "Binaries\n";
    for (std::size_t i = 0; i < pairs_.size(); ++i) text_ += fmt::format(" x{}\n", parts_ + i);
    return text_ + "End\n";
  }

  /// The span of a solution.
  [[nodiscard]] double span_of(const std::vector<double>& values) const { return values[span()]; }

  /// The schedule of a solution, with rows in order of time.
  [[nodiscard]] Schedule schedule(const std::vector<double>& values) const {
    constexpr std::array kKinds = {ActionKind::kForward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight};
    // A part of zero duration starts together with the next part; their middles differ.
    std::vector<double> middles(parts_);
    for (std::size_t i = 0; i < parts_; ++i) middles[i] = values[i] + cost(i) / 2;
    Schedule schedule{"exact", problem_.placement, problem_.microbatches, {}};
    for (int r = 0; r < problem_.ranks; ++r) {
      Row& row = schedule.rows.emplace_back();
      for (const std::size_t i : order_.in_time(r, middles)) {
        row.emplace_back(kKinds[static_cast<std::size_t>(part(i))], StageId(stage(i)),
                         MicrobatchId(order_.microbatch(i)));
      }
    }
    return schedule;
  }

 private:
  [[nodiscard]] Part part(std::size_t i) const { return order_.part(i); }
  [[nodiscard]] std::size_t stage(std::size_t i) const { return order_.stage(i); }
  [[nodiscard]] int rank(std::size_t i) const { return order_.rank(i); }
  [[nodiscard]] double cost(std::size_t i) const { return problem_.cost(part(i), stage(i)); }
  [[nodiscard]] std::size_t span() const { return parts_ + pairs_.size(); }

  /// Message time from a part to one that needs its result; 0 within a stage.
  [[nodiscard]] double hop(std::size_t from, std::size_t to) const {
    if (part(from) != part(to) || stage(from) == stage(to)) return 0;
    return part(from) == Part::kForward ? problem_.hop_up[stage(from)] : problem_.hop_down[stage(from)];
  }

  void write_flow() {
    order_.for_each_edge([&](std::size_t a, std::size_t b) {
      text_ += fmt::format(" x{} - x{} >= {:.9g}\n", b, a, cost(a) + hop(a, b));
    });
  }

  /// Bounds on start times. Earliest: from data dependencies. Latest: from the known span; the rank of stage 0 starts
  /// at 0 and must end within it, every other rank must end within it after its own first F. Tight bounds make the
  /// solver fast.
  void find_bounds() {
    earliest_.assign(parts_, 0);
    std::vector<double> tail(parts_, -1);  // longest path from a start to an end on stage 0's rank; -1 for none
    for (std::size_t i = 0; i < parts_; ++i) {
      if (rank(i) == problem_.rank_of[0]) tail[i] = cost(i);
    }
    for (bool changed = true; changed;) {
      changed = false;
      order_.for_each_edge([&](std::size_t a, std::size_t b) {
        const double after = earliest_[a] + cost(a) + hop(a, b);
        const double before = tail[b] < 0 ? -1 : tail[b] + cost(a) + hop(a, b);
        changed = changed || after > earliest_[b] || before > tail[a];
        earliest_[b] = std::max(earliest_[b], after);
        tail[a] = std::max(tail[a], before);
      });
    }
    const double most = known_span_ * (1 + 1e-6);
    latest_.assign(parts_, 0);
    for (std::size_t i = 0; i < parts_; ++i) {
      const auto first = static_cast<std::size_t>(problem_.stages_of[static_cast<std::size_t>(rank(i))].front());
      const double own = most - tail[order_.id(Part::kForward, first, 0)] + most - cost(i);
      latest_[i] = std::max(earliest_[i], tail[i] < 0 ? own : std::min(own, most - tail[i]));
    }
  }

  /// Disjunctive constraints (big-M). x = 1: the first part of the pair runs before the second.
  void write_orders() {
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      const auto [a, b] = pairs_[i];
      const double first = std::max(0.0, latest_[a] + cost(a) - earliest_[b]);
      const double second = std::max(0.0, latest_[b] + cost(b) - earliest_[a]);
      text_ += fmt::format(" x{} - x{} - {:.9g} x{} >= {:.9g}\n", b, a, first, parts_ + i, cost(a) - first);
      text_ += fmt::format(" x{} - x{} + {:.9g} x{} >= {:.9g}\n", a, b, second, parts_ + i, cost(b));
    }
  }

  /// Memory of a rank after each F, from the parts that run before the F.
  void write_memory() {
    if (!std::isfinite(problem_.limit.front())) return;
    std::vector<std::string> terms(parts_);
    std::vector<double> fixed(parts_, 0);
    for (std::size_t f = 0; f < parts_; ++f) {
      if (part(f) != Part::kForward) continue;
      fixed[f] = problem_.activation[stage(f)];
      for (std::size_t a = 0; a < parts_; ++a) {
        if (a != f && rank(a) == rank(f) && order_.implied(a, f)) fixed[f] += change(a);
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
      text_ +=
          fmt::format("{} <= {:.9g}\n", terms[f], problem_.limit[static_cast<std::size_t>(rank(f))] - fixed[f] + 1e-6);
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
      const std::size_t first = order_.id(Part::kForward, static_cast<std::size_t>(own.front()), 0);
      for (const int s : own) {
        const std::size_t last = order_.id(Part::kWeight, static_cast<std::size_t>(s), m_ - 1);
        text_ += fmt::format(" x{} - x{} + x{} >= {:.9g}\n", span(), last, first, cost(last));
      }
    }
  }

  const Problem& problem_;
  detail::PartOrder order_;
  std::size_t m_;
  double known_span_;
  std::size_t parts_;
  const std::vector<std::pair<std::size_t, std::size_t>>& pairs_;
  std::vector<double> earliest_;
  std::vector<double> latest_;
  std::string text_;
};

}  // namespace

void check_exact_size(const Placement& placement, int microbatches) {
  (void)detail::PartOrder(placement, microbatches);
}

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
  result.schedule = program.schedule(solution.values);
  result.simulation = simulate(result.schedule, costs);
  // The program does not model messages that share a link or hold up their sender. If they make the simulated span
  // longer, another schedule may be better. Nor does it know that parameters and gradients are not held all the time.
  result.proven = solution.proven && !costs.has_more_than_activations() &&
                  result.simulation.span <= program.span_of(solution.values) * (1 + kSolverTolerance);
  return result;
}

}  // namespace stagecraft

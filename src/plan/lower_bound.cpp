// Reasons why a rank must idle or end late:
//
// - Before its first I, a rank can only run forwards, and only as many as memory holds, until the first microbatch
//   returns from the later stages.
// - Between its last F and the I of the last microbatch, a rank can only run input and weight parts that it holds.
// - An activation is held until its microbatch returns; memory times duration of all activations is at most the
//   memory limit times the span.
// - Memory limits the weight parts that can be left for after a rank's last I. The first rank ends only after the last
//   I has returned from the last rank, which itself started late.

#include <algorithm>
#include <cmath>

#include "problem.h"

namespace stagecraft::detail {
namespace {

/// Time that one rank must lose.
struct Loss {
  double start = 0;             ///< Idle before its first I.
  double end = 0;               ///< Idle between its last F and the last microbatch's I.
  double until_last_input = 0;  ///< From its first F to its last I, minus all its work; negative when Ws follow.
};

class Bound {
 public:
  explicit Bound(const Problem& problem) : problem_(problem) {
    for (int s = 0; s < problem.stages; ++s) {
      const auto at = static_cast<std::size_t>(s);
      forward_path_.push_back(forward_path_.back() + problem.forward[at] + problem.hop_up[at]);
      input_path_.push_back(input_path_.back() + problem.least_input[at] + problem.hop_down[at]);
    }
  }

  [[nodiscard]] double span() const {
    std::vector<Loss> losses;
    double span = 0;
    for (int r = 0; r < problem_.ranks; ++r) {
      losses.push_back(loss_of(static_cast<std::size_t>(r)));
      const bool apart = ends_apart(static_cast<std::size_t>(r));
      const double idle =
          apart ? losses.back().start + losses.back().end : std::max(losses.back().start, losses.back().end);
      span = std::max(
          {span, problem_.least_work[static_cast<std::size_t>(r)] + idle, memory_time(static_cast<std::size_t>(r))});
    }
    // Rank a starts before rank q, and ends after q's last I has reached it.
    for (std::size_t a = 0; a < losses.size(); ++a) {
      for (std::size_t q = 0; q < losses.size(); ++q) {
        if (problem_.stages_of[a].empty() || problem_.stages_of[q].empty()) continue;
        const auto from = static_cast<std::size_t>(problem_.stages_of[a].front());
        const auto to = static_cast<std::size_t>(problem_.stages_of[q].front());
        if (to <= from) continue;
        const double there = forward_path_[to] - forward_path_[from];
        const double back = input_path_[to] - input_path_[from] + problem_.hop_down[to] - problem_.hop_down[from];
        span =
            std::max(span, there + problem_.least_work[q] + losses[q].until_last_input + back + problem_.weight[from]);
      }
    }
    return span;
  }

 private:
  /// The shortest span in which the rank's memory can hold all its activations for as long as they are needed.
  [[nodiscard]] double memory_time(std::size_t r) const {
    if (!std::isfinite(problem_.most_limit[r])) return 0;
    const auto end = static_cast<std::size_t>(problem_.stages);
    double held = 0;
    for (const int stage : problem_.stages_of[r]) {
      const auto s = static_cast<std::size_t>(stage);
      const double away =
          forward_path_[end] - forward_path_[s] + input_path_[end] - input_path_[s + 1] + problem_.least_input[s];
      held += away * problem_.least_activation[s] + problem_.weight[s] * problem_.weight_gradient[s];
    }
    return held > 0 ? problem_.microbatches * held / problem_.most_limit[r] : 0;
  }

  /// Whether memory forces some F after the first I, so that idle times at the start and at the end are disjoint.
  [[nodiscard]] bool ends_apart(std::size_t r) const {
    double whole = 0;
    for (const int stage : problem_.stages_of[r]) whole += problem_.least_activation[static_cast<std::size_t>(stage)];
    return problem_.microbatches * whole > problem_.most_limit[r] + kTinyMemory;
  }

  /// The largest ratio of time to memory of any stage of the rank.
  template <typename Time>
  [[nodiscard]] double best_rate(std::size_t r, const std::vector<double>& memory, Time&& time) const {
    double rate = 0;
    for (const int stage : problem_.stages_of[r]) {
      const auto s = static_cast<std::size_t>(stage);
      if (time(s) > 0) rate = std::max(rate, memory[s] > 0 ? time(s) / memory[s] : HUGE_VAL);
    }
    return rate;
  }

  /// rate * memory; 0 when a factor is 0, even if the other is infinite.
  static double product(double rate, double memory) { return rate == 0 || memory <= 0 ? 0 : rate * memory; }

  [[nodiscard]] Loss loss_of(std::size_t r) const {
    Loss loss;
    const std::vector<int>& own = problem_.stages_of[r];
    if (own.empty()) return loss;
    const auto first = static_cast<std::size_t>(own.front());
    const auto last = static_cast<std::size_t>(own.back());
    double all_forwards = 0;
    double all_inputs = 0;
    double all_weights = 0;
    double own_weights = 0;
    for (const int stage : own) {
      const auto s = static_cast<std::size_t>(stage);
      all_forwards += problem_.microbatches * problem_.forward[s];
      all_inputs += (problem_.microbatches - 1) * problem_.least_input[s];
      all_weights += problem_.microbatches * problem_.weight[s];
      own_weights += problem_.weight[s];
    }

    // From the first F to the arrival of the first I, and from the end of the last F to the arrival of its I.
    const auto end = static_cast<std::size_t>(problem_.stages);
    const double turn = input_path_[end] - input_path_[last + 1];
    const double there = forward_path_[end] - forward_path_[first];
    const double round_trip = forward_path_[end] - forward_path_[last] - problem_.forward[last] + turn;

    const double forwards_held =
        product(best_rate(r, problem_.least_activation, [&](std::size_t s) { return problem_.forward[s]; }),
                problem_.most_limit[r]);
    loss.start = std::max(0.0, there + turn - std::min(all_forwards, forwards_held));

    // Besides the last microbatch, memory holds microbatches that still need I and W, or only W.
    double whole = 0;
    for (const int stage : own) whole += problem_.least_activation[static_cast<std::size_t>(stage)];
    const double room = std::max(0.0, problem_.most_limit[r] - whole);
    const double both = best_rate(r, problem_.least_activation,
                                  [&](std::size_t s) { return problem_.least_input[s] + problem_.weight[s]; });
    const double inputs =
        best_rate(r, problem_.least_activation, [&](std::size_t s) { return problem_.least_input[s]; });
    const double weights = best_rate(r, problem_.weight_gradient, [&](std::size_t s) { return problem_.weight[s]; });
    const double held = std::min(product(std::max(both, weights), room), all_inputs + all_weights - own_weights);
    loss.end = std::max(0.0, round_trip - held);

    // Ws after the last I bring the last I forward; Is between the last F and the last I fill the wait. Both use
    // `room`: as many Is as fit into the round trip, the rest of the room for Ws, each at its best rate.
    const double useful = std::min({round_trip, all_inputs, product(inputs, room)});
    const double gain = std::min(
        {product(std::max(both, weights), room), product(weights, room) + useful, all_weights - own_weights + useful});
    const double joint = round_trip - gain - own_weights;
    const double weights_after = std::min(product(weights, room), all_weights - own_weights) + own_weights;
    loss.until_last_input = ends_apart(r) ? std::max(joint, -weights_after) + loss.start
                                          : std::max({joint, loss.start - weights_after, -weights_after});
    return loss;
  }

  const Problem& problem_;
  std::vector<double> forward_path_ = {0};  // one microbatch, from the start of stage 0 to the start of stage s
  std::vector<double> input_path_ = {0};    // prefix sums of I and the message down, by stage
};

}  // namespace

double lower_bound(const Problem& problem) { return Bound(problem).span(); }

}  // namespace stagecraft::detail

#pragma once

#include <limits>

#include "policy.h"
#include "problem.h"

namespace stagecraft::detail {

struct Outcome {
  double span = std::numeric_limits<double>::infinity();  ///< Largest of any rank; infinite without a schedule.
  double mean_span = std::numeric_limits<double>::infinity();
};

/// A list scheduler on a common clock. A free rank starts the ready F or I that is due first, within the policy's
/// slack. It starts a W where it would otherwise wait, where a W is due, or where a forward lacks memory. Memory never
/// exceeds the limit, and the microbatches of a stage run in order. Reuses its buffers between runs.
class Dispatcher {
 public:
  explicit Dispatcher(const Problem& problem);

  /// Returns an infinite span as soon as the span of a rank must exceed `cutoff`, or when no rank can go on.
  Outcome run(const Policy& policy, double cutoff = std::numeric_limits<double>::infinity());

  /// Parts dispatched in all runs so far.
  [[nodiscard]] double parts_done() const { return parts_done_; }

  /// The rows of the last run.
  [[nodiscard]] std::vector<StepRow> rows() const;

  /// The critical path of the last run, to the last part of the rank with the largest span: fills in the pairs of
  /// adjacent parts of a rank where the second starts when the first ends. Only reordering such a pair can shorten it.
  void critical_pairs(std::vector<std::pair<Step, Step>>& pairs) const;

  /// Start times of the last run, per Part, by stage and microbatch. Used as due times, they give the same schedule.
  [[nodiscard]] const std::array<std::vector<double>, 3>& starts() const { return starts_; }

 private:
  struct Rank {
    double free = 0;
    double end = 0;  // end of its last part; `free` is later when a message holds up its sender
    double first_start = -1;
    double allowance = 0;  // idle time left before the span exceeds the cutoff
    double memory = 0;
    double passing = 0;  // share of `memory` held by microbatches with later stages on this rank
    int left = 0;        // parts not done yet
    StepRow row;         // its parts, in order
  };
  /// The next F, I and W of a stage, with due and arrival times; infinite while there is none.
  struct Next {
    double forward_due;
    double forward_at;
    double input_due;
    double input_at;
    double weight_due;
    std::array<int, 3> done;  // per Part
  };

  void reset(const Policy& policy, double cutoff);
  double decide(int r, double now, double slack, const Policy& policy);
  bool unlock(double now, const Policy& policy);
  void start(int r, int stage, Part part, double now, const Policy& policy);
  void finish_forward(Rank& rank, std::size_t s, std::size_t j, const Policy& policy);
  void finish_input(Rank& rank, std::size_t s, std::size_t j, const Policy& policy);
  [[nodiscard]] std::size_t at(const Step& step) const {
    return static_cast<std::size_t>(step.stage) * m_ + static_cast<std::size_t>(step.microbatch);
  }
  [[nodiscard]] double start_of(const Step& step) const {
    return starts_[static_cast<std::size_t>(step.part)][at(step)];
  }
  [[nodiscard]] double end_of(const Step& step) const;
  void arrive(int rank, double time);

  const Problem& problem_;
  std::size_t m_;
  double parts_done_ = 0;
  bool hopeless_ = false;  // a rank has idled so long that its span must exceed the cutoff
  std::vector<Rank> ranks_;
  std::vector<double> wake_;
  std::vector<Next> next_;  // per stage
  Links links_;
  std::array<std::vector<double>, 3> starts_;
  std::array<std::vector<int>, 3> slots_;  // index of each part in its rank's row
  std::vector<double> forward_at_;         // arrival per (stage, microbatch)
  std::vector<double> input_at_;
};

}  // namespace stagecraft::detail

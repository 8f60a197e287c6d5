#pragma once

#include <limits>

#include "links.h"
#include "policy.h"

namespace stagecraft::detail {

struct Outcome {
  double span = std::numeric_limits<double>::infinity();  ///< Largest of any rank; infinite when it got stuck.
  double mean_span = std::numeric_limits<double>::infinity();
};

/// A list scheduler on a common clock. A rank that is free takes what is ready and due first, within the policy's
/// slack; a weight part where it would otherwise wait, where one is due, or where a forward has no room. Memory never
/// exceeds the limit, microbatches of a stage go in order. Keeps its buffers from run to run.
class Dispatcher {
 public:
  explicit Dispatcher(const Problem& problem);

  /// Gives up, as if stuck, as soon as the span of a rank must exceed `cutoff`.
  Outcome run(const Policy& policy, double cutoff = std::numeric_limits<double>::infinity());

  /// In all runs so far.
  [[nodiscard]] double parts_done() const { return parts_done_; }

  /// What the ranks did in the last run.
  [[nodiscard]] std::vector<StepRow> rows() const;

  /// Neighbours on a rank, the second starting where the first ends, along the chain of waits that ends with the last
  /// part of the rank with the largest span: only another order of such a pair can shorten it. Of the last run.
  void critical_pairs(std::vector<std::pair<Step, Step>>& pairs) const;

  /// When each part started in the last run, by stage and microbatch: due times that lead to the same schedule.
  [[nodiscard]] const std::array<std::vector<double>, 3>& starts() const { return starts_; }

 private:
  struct Rank {
    double free = 0;
    double end = 0;  // of its last part; `free` is later where a message holds up its sender
    double first_start = -1;
    double allowance = 0;  // idle time it may still have
    double memory = 0;
    double passing = 0;  // part of it held by microbatches that have yet to come back for another stage of the rank
    int left = 0;        // parts not done yet
    StepRow row;         // what it did
  };
  /// What a decision looks at: the next F, I and W of a stage. Never due while there is none.
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
  std::array<std::vector<int>, 3> slots_;  // where in its rank's row each part stands
  std::vector<double> forward_at_;         // arrival per (stage, microbatch)
  std::vector<double> input_at_;
};

}  // namespace stagecraft::detail

#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "recorded_step.h"
#include "stagecraft/sim/costs.h"

/// Costs of messages and of actions, measured from recorded steps.
namespace stagecraft::detail {

/// Costs of messages by link: transfer time, and the time to receive a message that has already arrived. Call `add` for
/// all messages, then `close`, then the others.
class LinkProfile {
 public:
  void add(const RecordedMessage& message);
  void close();

  /// The part of a message's wait that is receive overhead: it would remain had the message arrived earlier.
  [[nodiscard]] double handling(const RecordedMessage& message) const;
  /// Sets `link` and `links`.
  void write(Costs& costs) const;

 private:
  struct Link {
    std::vector<RecordedMessage> messages;
    bool was_waited_for = false;  // by a consumer of any message
    double delay = 0;             // median of these messages
    double handling = 0;          // median of messages that had arrived before
  };

  static LinkCosts costs_of(const Link& link);

  std::map<std::pair<std::int32_t, std::int32_t>, Link> links_;  // by sender and receiver
};

/// Costs of actions. The speed of a rank varies between steps: in one step, an action takes its cost times the rank's
/// pace. Call `add` for all steps, then `close`, then the others.
class WorkProfile {
 public:
  explicit WorkProfile(const Placement& placement) : placement_(placement) {}

  /// `links` tells which part of a wait is a cost.
  void add(const RecordedStep& step, const LinkProfile& links);
  void close();

  [[nodiscard]] bool has(StageId stage, ActionKind kind) const { return cost_of(stage, kind) >= 0; }
  /// Mean seconds of one action in a step of median pace; 0 if there was none.
  [[nodiscard]] double cost(StageId stage, ActionKind kind) const { return std::max(0.0, cost_of(stage, kind)); }
  /// Indexed by step, then rank. The median of each rank is 1.
  [[nodiscard]] const std::vector<std::vector<double>>& paces() const { return paces_; }
  /// Relative standard deviation of actions of one stage and kind within a step, at most 1.
  [[nodiscard]] double jitter() const;

 private:
  struct Sums {
    std::array<double, kActionKinds> seconds{};  // including the actions' messages
    std::array<double, kActionKinds> count{};
    std::array<double, kActionKinds> own{};  // seconds, without messages
    std::array<double, kActionKinds> squares{};
  };
  using StepSums = std::vector<Sums>;  // by stage
  using KindCosts = std::array<double, kActionKinds>;

  static void add_rank(const RecordedStep& step, RankId rank, const LinkProfile& links, StepSums& sums);
  static double jitter_of(const StepSums& step);
  void set_costs();
  double set_paces();
  void make_paces_typical();
  [[nodiscard]] double cost_of(StageId stage, ActionKind kind) const {
    return costs_[stage.index()][static_cast<std::size_t>(kind)];
  }

  const Placement& placement_;
  std::vector<StepSums> steps_;
  std::vector<KindCosts> costs_;            // by stage; -1 for kinds that were not recorded
  std::vector<std::vector<double>> paces_;  // by step, by rank
};

}  // namespace stagecraft::detail

#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <ostream>
#include <set>

#include "dice.h"
#include "stagecraft/schedule/schedule.h"

/// Compute-only schedules that no generator would make, but that can run: any placement, and any order of actions that
/// respects their dependencies.
namespace stagecraft::property {

struct RandomShape {
  int ranks = 1;
  int extra_stages = 0;  ///< Beyond the one that every rank has.
  int microbatches = 1;
  bool trains = true;
  int split_percent = 0;    ///< Backwards that are an I and a W.
  int overlap_percent = 0;  ///< Forwards or backwards that overlap with another one, if one is ready.
  int idle_percent = 0;
  std::uint64_t seed = 0;
};

inline void showValue(const RandomShape& shape, std::ostream& out) {
  out << shape.ranks << " ranks, " << shape.ranks + shape.extra_stages << " stages, " << shape.microbatches
      << " microbatches, " << (shape.trains ? "training" : "forward only") << ", split " << shape.split_percent
      << " %, overlap " << shape.overlap_percent << " %, idle " << shape.idle_percent << " %, seed " << shape.seed;
}

inline Placement random_placement(int ranks, int stages, Dice& dice) {
  std::vector<RankId> rank_of;
  for (int s = 0; s < stages; ++s) {
    rank_of.emplace_back(s < ranks ? static_cast<std::size_t>(s) : dice.below(static_cast<std::size_t>(ranks)));
  }
  for (std::size_t i = rank_of.size(); i > 1; --i) std::swap(rank_of[i - 1], rank_of[dice.below(i)]);
  return {ranks, std::move(rank_of)};
}

/// Executes the whole pipeline one random ready action at a time and writes down who did what: every order that can
/// execute can come out.
class RandomOrder {
 public:
  explicit RandomOrder(const RandomShape& shape) : shape_(shape), dice_(shape.seed) {
    schedule_.name = "random";
    schedule_.placement = random_placement(shape.ranks, shape.ranks + shape.extra_stages, dice_);
    schedule_.microbatches = shape.microbatches;
    schedule_.rows.resize(static_cast<std::size_t>(shape.ranks));
    ready_.resize(schedule_.rows.size());
    for (int m = 0; m < shape.microbatches; ++m) add_ready(Action::forward(StageId(0), MicrobatchId(m)));
  }

  Schedule run() {
    while (!active_.empty()) {
      const std::size_t rank = dice_.one_of(std::vector<std::size_t>(active_.begin(), active_.end()));
      while (dice_.chance(shape_.idle_percent)) schedule_.rows[rank].push_back(Action::idle());
      take_one(rank);
    }
    if (dice_.chance(shape_.idle_percent)) schedule_.rows[0].push_back(Action::idle());
    return std::move(schedule_);
  }

 private:
  void take_one(std::size_t rank) {
    const Action first = take(rank, dice_.below(ready_[rank].size()));
    const auto partner = std::find_if(ready_[rank].begin(), ready_[rank].end(), [&](const Action& other) {
      return (first.kind() == ActionKind::kForward && gives_input_gradient(other.kind())) ||
             (gives_input_gradient(first.kind()) && other.kind() == ActionKind::kForward);
    });
    if (partner == ready_[rank].end() || !dice_.chance(shape_.overlap_percent)) {
      schedule_.rows[rank].push_back(first);
      return enable_successors(first);
    }
    const Action second = take(rank, static_cast<std::size_t>(partner - ready_[rank].begin()));
    schedule_.rows[rank].push_back(Action::overlap(first, second));
    enable_successors(first);
    enable_successors(second);
  }

  Action take(std::size_t rank, std::size_t index) {
    std::vector<Action>& ready = ready_[rank];
    const Action taken = ready[index];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(index));
    if (ready.empty()) active_.erase(rank);
    return taken;
  }

  void add_ready(const Action& action) {
    const std::size_t rank = schedule_.placement.rank_of(action.stage()).index();
    ready_[rank].push_back(action);
    active_.insert(rank);
  }

  void add_backward(StageId stage, MicrobatchId m) {
    add_ready(dice_.chance(shape_.split_percent) ? Action::backward_input(stage, m) : Action::backward(stage, m));
  }

  void enable_successors(const Action& done) {
    const StageId s = done.stage();
    const MicrobatchId m = done.microbatch();
    if (done.kind() == ActionKind::kForward) {
      if (s.value + 1 < schedule_.stages()) return add_ready(Action::forward(s + 1, m));
      if (shape_.trains) add_backward(s, m);  // the F of every stage before it is done, so one chain leads back
      return;
    }
    if (!gives_input_gradient(done.kind())) return;
    if (done.kind() == ActionKind::kBackwardInput) add_ready(Action::backward_weight(s, m));
    if (s.value > 0) add_backward(s - 1, m);
  }

  RandomShape shape_;
  Dice dice_;
  Schedule schedule_;
  std::vector<std::vector<Action>> ready_;  // per rank
  std::set<std::size_t> active_;            // ranks with something ready
};

inline Schedule random_schedule(const RandomShape& shape) { return RandomOrder(shape).run(); }

/// Uniform over the whole range from the first run on, rather than growing with the run. The seed is not shrunk: only
/// the shape says how large a counterexample is.
inline rc::Gen<RandomShape> random_shapes(int most_ranks, int most_extra_stages, int most_microbatches) {
  const auto percent = [] { return rc::gen::element(0, 0, 10, 50, 100); };
  return rc::gen::resize(
      rc::kNominalSize,
      rc::gen::build<RandomShape>(
          rc::gen::set(&RandomShape::ranks, rc::gen::inRange(1, most_ranks + 1)),
          rc::gen::set(&RandomShape::extra_stages, rc::gen::inRange(0, most_extra_stages + 1)),
          rc::gen::set(&RandomShape::microbatches, rc::gen::inRange(1, most_microbatches + 1)),
          rc::gen::set(&RandomShape::trains, rc::gen::weightedElement<bool>({{9, true}, {1, false}})),
          rc::gen::set(&RandomShape::split_percent, percent()), rc::gen::set(&RandomShape::overlap_percent, percent()),
          rc::gen::set(&RandomShape::idle_percent, rc::gen::element(0, 0, 10, 50)),
          rc::gen::set(&RandomShape::seed, rc::gen::noShrink(rc::gen::arbitrary<std::uint64_t>()))));
}

}  // namespace stagecraft::property

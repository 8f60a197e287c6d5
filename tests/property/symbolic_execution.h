#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/action.h"

/// Runs a schedule on symbols instead of tensors: each value is a hash of how it came about, so two runs have the same
/// result exactly if every stage saw the same inputs. Shares no code with the verifier, so that it can find its errors.
namespace stagecraft::property {

using Value = std::uint64_t;

inline Value combine(std::initializer_list<Value> parts) {
  Value hash = 0x243f6a8885a308d3U;
  for (const Value part : parts) {
    hash = (hash ^ part) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 29;
  }
  return hash;
}

namespace meaning {
inline Value of(StageId s) { return static_cast<Value>(s.value); }
inline Value of(MicrobatchId m) { return static_cast<Value>(m.value); }
inline Value data(MicrobatchId m) { return combine({1, of(m)}); }
inline Value output(StageId s, MicrobatchId m, Value input) { return combine({2, of(s), of(m), input}); }
inline Value loss_gradient(MicrobatchId m, Value output) { return combine({3, of(m), output}); }
inline Value input_gradient(StageId s, MicrobatchId m, Value input, Value gradient) {
  return combine({4, of(s), of(m), input, gradient});
}
inline Value weight_gradient(StageId s, MicrobatchId m, Value input, Value gradient) {
  return combine({5, of(s), of(m), input, gradient});
}
}  // namespace meaning

struct Result {
  std::vector<std::vector<Value>> gradients;  ///< Per stage the weight gradients that were added up, sorted.
  std::vector<Value> outputs;                 ///< Of the last stage, per microbatch; 0 for none.
  std::map<int, std::vector<Value>> reduced;  ///< Per stage the weight gradients that its REDUCE_GRAD found.

  bool operator==(const Result&) const = default;
};

enum class Ending { kFinished, kStuck, kBrokeRule };

struct Outcome {
  Ending ending = Ending::kFinished;
  std::string why;
  Result result;
};

template <typename Holds>
bool any_part(const Schedule& schedule, Holds holds) {
  bool any = false;
  for (const Row& row : schedule.rows) {
    for (const Action& action : row) for_each_part(action, [&](const Action& part) { any |= holds(part); });
  }
  return any;
}

/// What one device computes that runs the microbatches one by one. Whether the schedule trains and reduces at all is
/// read from its actions: without any backward it is a forward-only schedule, and a correct one.
inline Result sequential_result(const Schedule& schedule) {
  const bool reduces = any_part(schedule, [](const Action& a) { return a.kind() == ActionKind::kReduceGrad; });
  const bool trains = reduces || any_part(schedule, [](const Action& a) { return gives_input_gradient(a.kind()); });
  Result result;
  result.gradients.resize(static_cast<std::size_t>(schedule.stages()));
  for (int i = 0; i < schedule.microbatches; ++i) {
    const MicrobatchId m(i);
    std::vector<Value> inputs = {meaning::data(m)};
    for (int s = 0; s < schedule.stages(); ++s) inputs.push_back(meaning::output(StageId(s), m, inputs.back()));
    result.outputs.push_back(inputs.back());
    Value gradient = meaning::loss_gradient(m, inputs.back());
    for (int s = schedule.stages() - 1; trains && s >= 0; --s) {
      const Value input = inputs[static_cast<std::size_t>(s)];
      result.gradients[static_cast<std::size_t>(s)].push_back(meaning::weight_gradient(StageId(s), m, input, gradient));
      gradient = meaning::input_gradient(StageId(s), m, input, gradient);
    }
  }
  for (int s = 0; s < schedule.stages(); ++s) {
    std::vector<Value>& gradients = result.gradients[static_cast<std::size_t>(s)];
    std::sort(gradients.begin(), gradients.end());
    if (reduces) result.reduced[s] = gradients;
  }
  return result;
}

/// Messages under one of the three models. SENDs and RECVs of a rank are given in its order; a received value is looked
/// up by its RECV.
class Messages {
 public:
  Messages(const Schedule& schedule, CommModel model) : placement_(schedule.placement), model_(model) {}

  void send(const Action& send, Value value) {
    auto& channel = by_order_[channel_of(send)];
    channel.push_back(value);
    by_tag_[key(send)] = value;
  }

  void receive(const Action& receive) {
    const Action send = counterpart(receive);
    posted_[key(receive)] = received_[channel_of(send)]++;
  }

  [[nodiscard]] bool sent_before(const Action& send) const { return by_tag_.contains(key(send)); }
  [[nodiscard]] bool received_before(const Action& receive) const { return posted_.contains(key(receive)); }

  /// What a RECV that was posted got; nothing when it has not arrived yet. Matched by order alone, a RECV takes
  /// whatever comes next from that rank.
  [[nodiscard]] std::optional<Value> arrived(const Action& receive) const {
    const Action send = counterpart(receive);
    if (model_ == CommModel::kInOrder) {
      const auto channel = by_order_.find(channel_of(send));
      const std::size_t index = posted_.at(key(receive));
      if (channel == by_order_.end() || channel->second.size() <= index) return std::nullopt;
      return channel->second[index];
    }
    const auto found = by_tag_.find(key(send));
    return found == by_tag_.end() ? std::nullopt : std::optional(found->second);
  }

  /// Whether every SEND met a RECV and the other way round.
  [[nodiscard]] bool all_taken() const {
    if (by_tag_.size() != posted_.size()) return false;
    return std::all_of(by_order_.begin(), by_order_.end(), [&](const auto& channel) {
      const auto taken = received_.find(channel.first);
      return taken != received_.end() && taken->second == channel.second.size();
    });
  }

 private:
  using Key = std::tuple<ActionKind, StageId, MicrobatchId>;
  using Channel = std::pair<RankId, RankId>;  // from, to

  static Key key(const Action& a) { return {a.kind(), a.stage(), a.microbatch()}; }
  [[nodiscard]] Channel channel_of(const Action& send) const {
    return {placement_.rank_of(send.stage()), placement_.rank_of(peer_stage(send))};
  }

  const Placement& placement_;
  CommModel model_;
  std::map<Key, Value> by_tag_;
  std::map<Channel, std::vector<Value>> by_order_;
  std::map<Key, std::size_t> posted_;  // which receive of its channel a RECV was
  std::map<Channel, std::size_t> received_;
};

class SymbolicExecution {
 public:
  SymbolicExecution(const Schedule& schedule, CommModel model)
      : schedule_(schedule),
        placement_(schedule.placement),
        model_(model),
        communicates_(any_part(schedule, [](const Action& a) { return is_communication(a.kind()); })),
        messages_(schedule, model),
        next_(schedule.rows.size(), 0),
        shards_(static_cast<std::size_t>(schedule.stages()), false) {
    outcome_.result.gradients.resize(shards_.size());
    outcome_.result.outputs.resize(static_cast<std::size_t>(schedule.microbatches), 0);
    any_part(schedule, [&](const Action& a) {
      if (is_sharding(a) && placement_.contains(a.stage())) shards_[a.stage().index()] = true;
      return false;
    });
    sharded_ = shards_;  // a stage with an UNSHARD or RESHARD starts sharded
  }

  Outcome run() {
    bool progress = true;
    while (progress && outcome_.ending == Ending::kFinished) {
      progress = false;
      for (std::size_t r = 0; r < next_.size(); ++r) {
        while (outcome_.ending == Ending::kFinished && next_[r] < schedule_.rows[r].size() && advance(r))
          progress = true;
      }
    }
    if (outcome_.ending == Ending::kFinished) close();
    for (auto& gradients : outcome_.result.gradients) std::sort(gradients.begin(), gradients.end());
    return std::move(outcome_);
  }

 private:
  /// What became of one microbatch on one stage.
  struct Cell {
    std::optional<Value> input, output, gradient, input_gradient;
    bool weight_done = false;
  };

  static bool is_sharding(const Action& a) {
    return a.kind() == ActionKind::kUnshard || a.kind() == ActionKind::kReshard;
  }

  void break_rule(const Action& action, const std::string& rule) {
    if (outcome_.ending == Ending::kBrokeRule) return;
    outcome_.ending = Ending::kBrokeRule;
    outcome_.why = to_text(action) + ": " + rule;
  }

  /// False when the rank has to wait.
  bool advance(std::size_t r) {
    const Action& action = schedule_.rows[r][next_[r]];
    for_each_part(action, [&](const Action& part) { check_place(part, r); });
    if (action.is_overlap() && action.first().stage() == action.second().stage() &&
        action.first().microbatch() == action.second().microbatch()) {
      break_rule(action.second(), "in flight together with its own forward");
    }
    if (outcome_.ending != Ending::kFinished) return false;
    if (is_communication(action.kind())) return advance_message(action, r);
    if (waits(action.first()) || (action.is_overlap() && waits(action.second()))) return false;
    for_each_part(action, [&](const Action& part) { run_part(part); });
    ++next_[r];
    return true;
  }

  void check_place(const Action& part, std::size_t r) {
    if (part.is_idle()) return;
    if (!placement_.contains(part.stage())) return break_rule(part, "no such stage");
    if (placement_.rank_of(part.stage()).index() != r) return break_rule(part, "not on the rank of its stage");
    if (!has_microbatch(part.kind())) return;
    if (part.microbatch().value < 0 || part.microbatch().value >= schedule_.microbatches) {
      return break_rule(part, "no such microbatch");
    }
    if (!is_communication(part.kind())) return;
    if (!placement_.contains(peer_stage(part))) return break_rule(part, "no stage at the other end");
    if (placement_.share_rank(part.stage(), peer_stage(part))) break_rule(part, "a message from a rank to itself");
  }

  bool advance_message(const Action& action, std::size_t r) {
    const Action other_end = counterpart(action);
    if (model_ == CommModel::kRendezvous) {
      // The sender acts for both once both have arrived; meanwhile the receiver waits.
      const std::size_t peer = placement_.rank_of(other_end.stage()).index();
      const bool met = next_[peer] < schedule_.rows[peer].size() && schedule_.rows[peer][next_[peer]] == other_end;
      if (is_receive(action.kind()) || !met) return false;
      run_receive(other_end);
      ++next_[peer];
    }
    is_send(action.kind()) ? run_send(action) : run_receive(action);
    ++next_[r];
    return true;
  }

  void run_send(const Action& send) {
    const Cell& cell = at(send.stage(), send.microbatch());
    const auto& value = send.kind() == ActionKind::kSendForward ? cell.output : cell.input_gradient;
    if (!value) return break_rule(send, "nothing to send yet");
    if (messages_.sent_before(send)) return break_rule(send, "sent twice");
    messages_.send(send, *value);
  }

  void run_receive(const Action& receive) {
    if (messages_.received_before(receive)) return break_rule(receive, "received twice");
    messages_.receive(receive);
  }

  [[nodiscard]] Cell& at(StageId s, MicrobatchId m) { return cells_[{s, m}]; }

  /// The RECV through which the compute gets its input or its gradient; idle when it needs none.
  [[nodiscard]] Action receive_for(const Action& part) const {
    const bool forward = part.kind() == ActionKind::kForward;
    if (!forward && !gives_input_gradient(part.kind())) return {};
    const Action receive{forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward, part.stage(),
                         part.microbatch()};
    const StageId giver = peer_stage(receive);
    if (!placement_.contains(giver) || placement_.share_rank(giver, part.stage())) return {};
    return receive;
  }

  /// Whether what the compute needs from another rank is still to come. A RECV that was never posted brings nothing.
  [[nodiscard]] bool waits(const Action& part) {
    const Action receive = receive_for(part);
    if (receive.is_idle()) return false;
    if (!communicates_) return !handed_over(part);
    return messages_.received_before(receive) && !messages_.arrived(receive);
  }

  /// The neighbour stage's result, without communication.
  [[nodiscard]] std::optional<Value> handed_over(const Action& part) {
    const MicrobatchId m = part.microbatch();
    return part.kind() == ActionKind::kForward ? at(part.stage() - 1, m).output
                                               : at(part.stage() + 1, m).input_gradient;
  }

  [[nodiscard]] std::optional<Value> input_of(const Action& part) {
    const MicrobatchId m = part.microbatch();
    if (part.kind() == ActionKind::kForward && part.stage().value == 0) return meaning::data(m);
    if (part.kind() != ActionKind::kForward && part.stage().value == schedule_.stages() - 1) {
      const auto& output = at(part.stage(), m).output;
      return output ? std::optional(meaning::loss_gradient(m, *output)) : std::nullopt;
    }
    const Action receive = receive_for(part);
    if (receive.is_idle() || !communicates_) return handed_over(part);
    return messages_.received_before(receive) ? messages_.arrived(receive) : std::nullopt;
  }

  void run_part(const Action& part) {
    if (part.is_idle()) return;
    if (!has_microbatch(part.kind())) return run_of_stage(part);
    if (sharded_[part.stage().index()]) return break_rule(part, "computes on a sharded stage");
    if (part.kind() == ActionKind::kForward) return run_forward(part);
    if (part.kind() == ActionKind::kBackwardWeight) return run_weight(part);
    Cell& cell = at(part.stage(), part.microbatch());
    if (cell.input_gradient) return break_rule(part, "goes backward twice");
    cell.gradient = input_of(part);
    if (!cell.input || !cell.gradient) return break_rule(part, "goes backward without input or gradient");
    cell.input_gradient = meaning::input_gradient(part.stage(), part.microbatch(), *cell.input, *cell.gradient);
    if (part.kind() == ActionKind::kBackward) run_weight(part);
  }

  void run_forward(const Action& part) {
    Cell& cell = at(part.stage(), part.microbatch());
    if (cell.output) return break_rule(part, "goes forward twice");
    cell.input = input_of(part);
    if (!cell.input) return break_rule(part, "goes forward without input");
    cell.output = meaning::output(part.stage(), part.microbatch(), *cell.input);
    if (part.stage().value == schedule_.stages() - 1) outcome_.result.outputs[part.microbatch().index()] = *cell.output;
  }

  void run_weight(const Action& part) {
    Cell& cell = at(part.stage(), part.microbatch());
    if (!cell.input_gradient || cell.weight_done)
      return break_rule(part, "weight gradient twice or before the input's");
    cell.weight_done = true;
    outcome_.result.gradients[part.stage().index()].push_back(
        meaning::weight_gradient(part.stage(), part.microbatch(), *cell.input, *cell.gradient));
  }

  void run_of_stage(const Action& action) {
    const std::size_t s = action.stage().index();
    if (is_sharding(action)) {
      const bool gathers = action.kind() == ActionKind::kUnshard;
      if (sharded_[s] != gathers) return break_rule(action, "the stage is in that state already");
      sharded_[s] = !gathers;
      return;
    }
    auto gradients = outcome_.result.gradients[s];
    std::sort(gradients.begin(), gradients.end());
    const bool first = outcome_.result.reduced.emplace(action.stage().value, std::move(gradients)).second;
    if (!first) break_rule(action, "reduced twice");
  }

  void close() {
    for (std::size_t r = 0; r < next_.size(); ++r) {
      if (next_[r] == schedule_.rows[r].size()) continue;
      outcome_.ending = Ending::kStuck;
      outcome_.why += "rank " + std::to_string(r) + " at " + to_text(schedule_.rows[r][next_[r]]) + " ";
    }
    if (outcome_.ending == Ending::kStuck) return;
    if (!messages_.all_taken()) break_rule({}, "a message is left over");
    for (const Row& row : schedule_.rows) {
      if (std::all_of(row.begin(), row.end(), [](const Action& a) { return a.is_idle(); }))
        break_rule({}, "an idle rank");
    }
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      if (shards_[s] && !sharded_[s])
        break_rule(Action::of_stage(ActionKind::kReshard, StageId(s)), "missing at the end");
    }
  }

  const Schedule& schedule_;
  const Placement& placement_;
  CommModel model_;
  bool communicates_;  // without communication, a stage sees what its neighbour has made
  Messages messages_;
  std::vector<std::size_t> next_;
  std::vector<bool> shards_;   // the stages with an UNSHARD or RESHARD
  std::vector<bool> sharded_;  // now
  std::map<std::pair<StageId, MicrobatchId>, Cell> cells_;
  Outcome outcome_;
};

inline Outcome execute(const Schedule& schedule, CommModel model) { return SymbolicExecution(schedule, model).run(); }

/// Runs to the end, breaks no rule, and computes what one device would.
inline bool computes_the_right_thing(const Outcome& outcome, const Schedule& schedule) {
  return outcome.ending == Ending::kFinished && outcome.result == sequential_result(schedule);
}

}  // namespace stagecraft::property

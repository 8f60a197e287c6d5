// Whether a step runs as graphs: ranks decide it together. What is captured: executor_pieces.cpp.

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>

#include "executor.h"

namespace stagecraft {

/// Empty if this rank's part of the step may be captured.
std::string Executor::why_eager() const {
  const auto is_set = [](const auto& handler) { return !!handler; };
  if (!graphs_) return "it computes on " + world_.device().str();
  if (std::any_of(handlers_.begin(), handlers_.end(), is_set)) {
    return "a handler runs between two actions (Pipeline::on)";
  }
  const at::DeviceType type = world_.device().type();
  if (!options_.precision.autocast && at::autocast::is_autocast_enabled(type) &&
      at::autocast::is_autocast_cache_enabled()) {
    return "autocast around the step keeps copies of parameters, which a graph would go on to use when they have "
           "changed: use PipelineOptions::precision (autocast), or turn its cache off";
  }
  if (torch::autograd::AnomalyMode::is_enabled()) return "it looks for anomalies, which a replay does not see";
  if (!parameters_.keeps_memory()) {
    return "parameters are freed while their stage does not compute, and come back at another address: let replicas "
           "share gradients (PipelineOptions::shard), not parameters";
  }
  return {};
}

/// UNSHARD stays between the graphs, REDUCE_GRAD moves after them: they may wait for other threads. Returns false when
/// the step has to run eagerly. All ranks of the pipeline call it: they tell each other the signatures of their parts,
/// because the shapes that a rank gets are known to another.
bool Executor::run_as_graph(const StepInputs& inputs) {
  if (graphs_) graphs_->begin_step(inputs.training());
  if (!options_.graph.is_on() || !inputs.training()) return false;
  std::string why = why_eager();
  std::optional<StepSignature> signature;
  if (why.empty()) {
    signature.emplace(graphs_->signature_of(*program_, inputs));
    signature->add(std::uint64_t{record_});  // the graph then has events
    why = signature->obstacle();
  }
  const auto mixed = [](std::uint64_t hash, std::uint64_t more) { return hash * 0x9e3779b97f4a7c15ULL + more + 1; };
  std::uint64_t others = 0;
  bool may_capture = true;  // any rank
  if (world_.size() > 1) {
    constexpr char kCannot = '-', kSettled = '=', kUnsettled = '+';
    std::string own = kCannot + why;
    if (why.empty()) {
      std::uint64_t hash = 0;
      for (const std::uint64_t number : signature->key()) hash = mixed(hash, number);
      own = (graphs_->is_settled(*signature) ? kSettled : kUnsettled) + std::to_string(hash);
    }
    const auto during = world_.pipeline().during("the signature of the step");
    may_capture = false;
    int rank = 0;
    for (const std::string& of_rank : world_.pipeline().all_gather(own)) {
      if (why.empty() && of_rank.front() == kCannot) {
        why = "rank " + std::to_string(rank) + " cannot: " + of_rank.substr(1);
      }
      may_capture = may_capture || of_rank.front() == kUnsettled;
      others = mixed(others, std::hash<std::string>()(of_rank.substr(1)));
      ++rank;
    }
  }
  if (!why.empty()) {
    if (graphs_) graphs_->refuse(why);
    return false;
  }
  const StepGraphs::Execution execution{
      .program = *program_,
      .inputs = inputs,
      .capture =
          [&](const StepInputs& fixed, CapturedPieces& pieces, const auto& capture_piece) {
            inputs_ = &fixed;
            pieces_ = &pieces;
            capture_pieces(capture_piece);
          },
      .clear =
          [&] {
            is_capturing_ = false;
            inputs_ = &inputs;
            pieces_ = nullptr;
            drop_flights();
            for (Place& place : places_) place.accumulators.clear();  // they belong to streams of the capture
          },
      .replay =
          [&](CapturedPieces& pieces) {
            if (records_events()) begin_times();
            replay_pieces(pieces);
          },
      .others = others,
      .outputs = outputs_.outputs};
  StepGraphs::Outlook outlook = graphs_->prepare(*signature, execution);
  if (may_capture) outlook = agreed(std::move(outlook));
  using Kind = StepGraphs::Outlook::Kind;
  if (outlook.kind == Kind::kFailed) graphs_->give_up(outlook.why);
  if (outlook.kind == Kind::kNotNow) graphs_->put_off(outlook.why);
  if (outlook.kind != Kind::kReady) return false;
  graphs_->replay(*signature, execution);
  for (const Instruction& instruction : program_->instructions) {
    if (instruction.action.kind() == ActionKind::kReduceGrad) parameters_.reduce_gradients(instruction.stage);
  }
  return true;
}

/// Where one rank cannot replay a step that was captured just now, none does.
StepGraphs::Outlook Executor::agreed(StepGraphs::Outlook own) const {
  if (world_.size() == 1) return own;
  using Kind = StepGraphs::Outlook::Kind;
  constexpr char kFailed = '-', kNotNow = '0', kReady = '+';
  const auto during = world_.pipeline().during("the captures of all ranks");
  const bool is_ready = own.kind == Kind::kReady;
  const char mark = is_ready ? kReady : own.kind == Kind::kFailed ? kFailed : kNotNow;
  std::vector<std::string> all = world_.pipeline().all_gather(mark + (is_ready ? graphs_->forms() : own.why));
  for (const auto& [kind, of_kind] : {std::pair(Kind::kFailed, kFailed), {Kind::kNotNow, kNotNow}}) {
    if (own.kind == kind) return own;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].front() == of_kind) return {kind, "rank " + std::to_string(rank) + ": " + all[rank].substr(1)};
    }
  }
  for (std::string& forms : all) forms.erase(0, 1);
  if (const std::string tag = first_difference(all); !tag.empty()) {
    return {Kind::kFailed, tag + " has another shape, type or number in it than in the step before"};
  }
  return own;
}

}  // namespace stagecraft

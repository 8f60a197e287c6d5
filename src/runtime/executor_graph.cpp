// Steps that are captured as graphs. A piece is what a rank computes between two messages:
//
//     RECV_F  RECV_F | F0 | SEND_F | F1 | SEND_F | B0 | SEND_B ...
//      host            graph  host   graph   host   graph
//
// A rank without messages has one piece. Messages are copied into the memory that a graph reads, and out of the memory
// that it has written, so that others never see that memory.

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "executor.h"
#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

// Beyond these, kernels fill a GPU by themselves, and what lanes save is not worth their memory.
constexpr int kUsualLanes = 8;
constexpr std::int64_t kMostHandedOn = 8 << 20;

/// Whether the host has to do something for it in every step.
bool is_exchange(const Instruction& instruction) {
  switch (instruction.action.kind()) {
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
    case ActionKind::kRecvForward:
    case ActionKind::kRecvBackward:
      return true;
    default:
      return false;
  }
}

bool is_compute(const Instruction& instruction) { return is_compute(instruction.action.kind()); }

/// A computation that needs a message.
bool is_waiting(const Instruction& instruction) { return instruction.peer.value >= 0 && is_compute(instruction); }

/// The same memory, which it does not keep alive: graphs do.
at::Tensor view_of(const at::Tensor& tensor) {
  return at::for_blob(tensor.mutable_data_ptr(), tensor.sizes())
      .strides(tensor.strides())
      .target_device(tensor.device())
      .options(tensor.options().requires_grad(false))
      .make_tensor();
}

void require_plain(const at::Tensor& tensor, c10::Device device) {
  const bool is_plain =
      tensor.layout() == at::kStrided && tensor.device() == device && !tensor.is_conj() && !tensor.is_neg();
  if (!is_plain) throw InvalidArgument("a message has a tensor that no graph can read: sparse, or of another device");
}

}  // namespace

/// Empty if this rank's part of the step may be captured.
std::string Executor::why_eager() const {
  const auto is_set = [](const auto& handler) { return !!handler; };
  if (!graphs_) return "it computes on " + world_.device().str();
  if (std::any_of(handlers_.begin(), handlers_.end(), is_set)) {
    return "a handler runs between two actions (Pipeline::on)";
  }
  if (!parameters_.can_wait()) {
    return "replicas share parameters or gradients of the optimizer's own type (shard, precision): only replicas "
           "without these are captured";
  }
  return {};
}

/// UNSHARD moves before the graphs, REDUCE_GRAD after them: they may wait for other threads. Returns false when the
/// step has to run eagerly. All ranks of the pipeline call it: they capture in the same step, because the shapes that a
/// rank gets are known to another.
bool Executor::run_as_graph(const StepInputs& inputs) {
  if (!options_.graph.is_on() || !inputs.training()) return false;
  std::string why = why_eager();
  std::optional<StepSignature> signature;
  if (why.empty()) {
    signature.emplace(graphs_->signature_of(*program_, inputs));
    signature->add(std::uint64_t{record_});  // the graph then has events
    why = signature->obstacle();
  }
  std::uint64_t others = 0;
  if (world_.size() > 1) {
    std::string own = why.empty() ? "+" : "-" + why;
    if (signature) {
      for (const std::uint64_t number : signature->key()) others = others * 0x9e3779b97f4a7c15ULL + number + 1;
      if (why.empty()) own += std::to_string(others);
    }
    others = 0;
    const auto during = world_.pipeline().during("the signature of the step");
    int rank = 0;
    for (const std::string& signature_of_rank : world_.pipeline().all_gather(own)) {
      if (why.empty() && signature_of_rank.front() == '-') {
        why = "rank " + std::to_string(rank) + " cannot: " + signature_of_rank.substr(1);
      }
      others = others * 0x9e3779b97f4a7c15ULL + std::hash<std::string>()(signature_of_rank);
      ++rank;
    }
  }
  if (!why.empty()) {
    if (graphs_) graphs_->refuse(why);
    return false;
  }
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) parameters_.require(stage);
  const auto run = [&](const StepInputs& fixed, StepPieces& pieces) {
    inputs_ = &fixed;
    pieces_ = &pieces;
    if (records_events()) begin_times();
    run_in_pieces(pieces);
  };
  const auto clear = [&] {
    is_capturing_ = false;
    inputs_ = &inputs;
    pieces_ = nullptr;
    arrived_.clear();
    fills_.clear();
    drop_flights();
  };
  if (!graphs_->run(std::move(*signature), {*program_, inputs, run, clear, others, outputs_.outputs})) return false;
  for (const Instruction& instruction : program_->instructions) {
    if (instruction.action.kind() == ActionKind::kReduceGrad) parameters_.reduce_gradients(instruction.stage);
  }
  return true;
}

/// Halves of an overlap are in one piece.
std::size_t Executor::end_of_piece(std::size_t begin) const {
  const std::vector<Instruction>& all = program_->instructions;
  std::size_t end = begin;
  while (end < all.size() && all[end].step == all[begin].step && !is_exchange(all[end])) ++end;
  while (end < all.size() && !is_exchange(all[end])) {
    std::size_t next = end;
    bool waits = false;
    for (; next < all.size() && all[next].step == all[end].step && !is_exchange(all[next]); ++next) {
      waits = waits || is_waiting(all[next]);
    }
    if (waits) break;
    end = next;
  }
  return end;
}

void Executor::run_in_pieces(StepPieces& pieces) {
  const std::vector<Instruction>& all = program_->instructions;
  const auto receive_now = [&](const Instruction& instruction) {
    Message message;
    world_.activity().set(instruction.action);
    named_in_errors(instruction, [&] { message = receive(instruction, "message"); });
    return message;
  };
  for (std::size_t i = 0; i < all.size();) {
    if (is_exchange(all[i])) {
      pieces.exchange();
      world_.activity().set(all[i].action);
      if (records_events()) times_->start();
      bytes_ = 0;
      named_in_errors(all[i], [&] { exchange(all[i], pieces); });
      if (records_events()) times_->finish(all[i].action, bytes_);
      ++i;
      continue;
    }
    if (!is_compute(all[i])) {  // an UNSHARD, RESHARD or REDUCE_GRAD outside of all pieces
      ++i;
      continue;
    }
    const std::size_t end = end_of_piece(i);
    arrived_.clear();
    fills_.clear();
    std::vector<DeviceTimes::Wait> waits;
    for (std::size_t j = i; j < end; ++j) {
      if (!is_waiting(all[j])) continue;
      pieces.exchange();
      if (records_events()) waits.push_back({all[j].action, times_->now()});
      Message real = receive_now(all[j]);
      if (pieces.is_capture()) {
        arrived_.emplace_back(all[j].tag, std::move(real));
      } else {
        named_in_errors(all[j], [&] { as_captured(std::move(real), pieces.message()); });
      }
    }
    std::vector<DeviceTimes::Mark> marks;
    if (records_events() && pieces.is_capture()) {
      times_->prepare_graph(end - i, [&](const c10::Event& event) { graphs_->record(event); });
    }
    const auto work = [&] {
      is_capturing_ = true;
      begin_lanes();
      try {
        if (records_events()) {
          marks = times_->in_graph([&] { run_instructions(i, end); });
        } else {
          run_instructions(i, end);
        }
      } catch (...) {
        side_by_side_.reset();
        throw;
      }
      end_lanes();
      is_capturing_ = false;
    };
    const auto fill = [&] {
      for (auto& [to, from] : fills_) to.copy_(from, /*non_blocking=*/true);
    };
    named_in_errors(all[i], [&] { pieces.run(work, fill); });
    if (records_events()) {
      if (pieces.is_capture()) pieces.marks() = std::move(marks);
      times_->replayed(pieces.marks(), waits);
    }
    i = end;
  }
}

Executor::SideBySide::SideBySide(std::vector<std::size_t> lanes_of_microbatches,
                                 std::vector<std::size_t> orders_of_stages, StepGraphs& graphs, c10::DeviceType device)
    : lanes(std::move(lanes_of_microbatches)),
      orders(std::move(orders_of_stages)),
      watch(device, [&](const c10::StorageImpl* memory) { return graphs.is_gradient(memory); }),
      streams(graphs.branches(*std::max_element(lanes.begin(), lanes.end())), orders.size()) {}

/// Only a step without messages has lanes: pieces between two messages hold little that could run side by side.
void Executor::begin_lanes() {
  lanes_captured_ = 1;
  if (record_) return;  // a timeline is a list of actions one after the other
  if (!why_one_lane_.empty() || program_->has_overlaps || program_->has_messages) return;
  const int usual = most_handed_on_ <= kMostHandedOn ? kUsualLanes : 1;
  const auto most = static_cast<std::size_t>(options_.lanes > 0 ? options_.lanes : usual);
  std::vector<std::size_t> orders = orders_of(stages_);
  if (std::set<std::size_t>(orders.begin(), orders.end()).size() == 1) return;
  std::vector<std::size_t> lanes = lanes_of(*program_, microbatches_, most);
  lanes_captured_ = 1 + static_cast<int>(*std::max_element(lanes.begin(), lanes.end()));
  if (lanes_captured_ == 1) return;
  for (Place& place : places_) place.accumulators.clear();
  side_by_side_.emplace(std::move(lanes), std::move(orders), *graphs_, world_.device().type());
}

/// Throws if microbatches must not be computed side by side; the next capture has one lane.
void Executor::end_lanes() {
  if (!side_by_side_) return;
  side_by_side_->streams.join();
  why_one_lane_ = side_by_side_->watch.found();
  side_by_side_.reset();
  for (Place& place : places_) place.accumulators.clear();  // later graphs add up gradients on the rank's own stream
  if (!why_one_lane_.empty()) throw InvalidArgument("microbatches cannot be computed side by side: " + why_one_lane_);
}

void Executor::execute_on_lane(const Instruction& instruction) {
  SideBySide& all = *side_by_side_;
  Flight& in = flight(instruction.stage, instruction.action.microbatch());
  in.lane = all.lanes[instruction.action.microbatch().index()];
  const std::size_t order = all.orders[instruction.stage];
  all.streams.enter(in.lane, order);
  all.watch.enter(in.lane, order);
  execute(instruction);
  all.streams.leave();
}

/// The message that a graph reads in place of one that has arrived, which goes to `fills_`.
Message Executor::as_captured(Message real, CapturedMessage& captured) {
  Message seen{{}, real.header, real.form};
  if (is_capturing_) {
    captured.header = real.header;
    captured.form = real.form;
  } else {
    const bool is_same_form =
        captured.form == real.form || (captured.form && real.form && *captured.form == *real.form);
    if (!is_same_form || captured.header != real.header || captured.tensors.size() != real.tensors.size()) {
      throw InternalError("a message of a captured step looks otherwise than when it was captured");
    }
  }
  for (std::size_t t = 0; t < real.tensors.size(); ++t) {
    const at::Tensor& tensor = real.tensors[t];
    if (is_capturing_) {
      at::Tensor& place = seen.tensors.emplace_back();
      at::Tensor& view = captured.tensors.emplace_back();
      captured.needs_gradients.push_back(tensor.defined() && tensor.requires_grad());
      if (!tensor.defined()) continue;
      require_plain(tensor, world_.device());
      place = at::empty_like(tensor, tensor.options().requires_grad(false));
      view = view_of(place);
      if (tensor.requires_grad()) place.set_requires_grad(true);
      fills_.emplace_back(view, tensor.detach());
      continue;
    }
    const at::Tensor& view = captured.tensors[t];
    if (view.defined() != tensor.defined() ||
        (view.defined() && (view.sizes() != tensor.sizes() || view.scalar_type() != tensor.scalar_type()))) {
      throw InternalError("a message of a captured step has another shape than when it was captured");
    }
    if (view.defined()) fills_.emplace_back(view, tensor.detach());
  }
  return seen;
}

void Executor::exchange(const Instruction& instruction, StepPieces& pieces) {
  const ActionKind kind = instruction.action.kind();
  if (kind == ActionKind::kRecvForward || kind == ActionKind::kRecvBackward) return perform(instruction);
  CapturedMessage& captured = pieces.message();
  if (pieces.is_capture()) {
    const Message written = message_of(instruction);
    captured.header = written.header;
    captured.form = written.form;
    for (const at::Tensor& tensor : written.tensors) {
      if (tensor.defined()) require_plain(tensor, world_.device());
      captured.tensors.push_back(tensor.defined() ? view_of(tensor) : tensor);
      captured.needs_gradients.push_back(tensor.defined() && tensor.requires_grad());
    }
  }
  Message message{{}, captured.header, captured.form};
  const at::NoGradGuard no_graph;
  for (std::size_t t = 0; t < captured.tensors.size(); ++t) {
    at::Tensor copy = captured.tensors[t].defined() ? captured.tensors[t].clone() : at::Tensor();
    if (captured.needs_gradients[t]) copy.set_requires_grad(true);
    message.tensors.push_back(std::move(copy));
  }
  if (record_) bytes_ = message.bytes();
  world_.transport().send(instruction.peer, instruction.tag, std::move(message));
}

}  // namespace stagecraft

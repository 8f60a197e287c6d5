// Steps that are captured as graphs. A piece is what a rank computes between two messages:
//
//     RECV_F  RECV_F | F0 | SEND_F | F1 | SEND_F | B0 | SEND_B ...
//      host            graph  host   graph   host   graph
//
// A rank without messages has one piece. All pieces are captured before anything is exchanged. Messages are copied into
// the memory that a graph reads, and out of the memory that it has written, so that others never see that memory.

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <set>

#include "executor.h"
#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

// Beyond these, kernels fill a GPU by themselves, and what lanes save is not worth their memory.
constexpr int kUsualLanes = 8;
constexpr std::int64_t kMostHandedOn = 8 << 20;

bool is_send(const Instruction& instruction) {
  return instruction.action.kind() == ActionKind::kSendForward ||
         instruction.action.kind() == ActionKind::kSendBackward;
}

/// Whether the host has to do something for it in every step.
bool is_exchange(const Instruction& instruction) {
  return is_send(instruction) || instruction.action.kind() == ActionKind::kRecvForward ||
         instruction.action.kind() == ActionKind::kRecvBackward;
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

/// The same memory of a tensor that a graph has written. A conjugate or negative that is not computed yet stays one.
at::Tensor lazy_view_of(const at::Tensor& tensor) {
  at::Tensor view = view_of(tensor);
  if (tensor.is_conj()) view = at::_conj(view);
  if (tensor.is_neg()) view = at::_neg_view(view);
  return view;
}

at::Tensor computed_copy(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg() ? tensor.resolve_conj().resolve_neg() : tensor.clone();
}

}  // namespace

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
  if (!parameters_.keeps_memory()) {
    return "parameters are freed while their stage does not compute, and come back at another address: let replicas "
           "share "
           "gradients (PipelineOptions::shard), not parameters";
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

void Executor::capture_pieces(const StepGraphs::Execution::CapturePiece& capture_piece) {
  const std::vector<Instruction>& all = program_->instructions;
  for (std::size_t i = 0; i < all.size();) {
    if (!is_compute(all[i])) {
      if (is_send(all[i])) named_in_errors(all[i], [&] { note_sent(all[i]); });
      ++i;
      continue;
    }
    const std::size_t end = end_of_piece(i);
    std::vector<DeviceTimes::Mark> marks;
    if (records_events()) times_->prepare_graph(end - i, [&](const c10::Event& event) { graphs_->record(event); });
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
    named_in_errors(all[i], [&] { capture_piece(work); });
    if (records_events()) pieces_->marks.push_back(std::move(marks));
    i = end;
  }
}

void Executor::replay_pieces(CapturedPieces& pieces) {
  const std::vector<Instruction>& all = program_->instructions;
  std::size_t graph = 0;
  std::size_t message = 0;
  for (std::size_t i = 0; i < all.size();) {
    if (is_exchange(all[i])) {
      world_.activity().set(all[i].action);
      if (records_events()) times_->go_on();
      bytes_ = 0;
      named_in_errors(all[i], [&] {
        if (is_send(all[i])) {
          send_copy(all[i], pieces.messages.at(message++));
        } else {
          perform(all[i]);
        }
      });
      if (records_events()) {
        is_send(all[i]) ? times_->finish(all[i].action, bytes_) : times_->pass(all[i].action);
      }
      ++i;
      continue;
    }
    if (!is_compute(all[i])) {  // outside of all pieces
      start_gathering(i, i + 1);
      ++i;
      continue;
    }
    const std::size_t end = end_of_piece(i);
    start_gathering(i, end);
    std::vector<DeviceTimes::Wait> waits;
    const auto received = pieces.messages.begin() + static_cast<std::ptrdiff_t>(message);
    for (std::size_t j = i; j < end; ++j) {
      if (!is_waiting(all[j])) continue;
      ++message;
      if (records_events()) waits.push_back({all[j].action, times_->now()});
      world_.activity().set(all[j].action);
      // The halves of an overlap may have taken theirs in another order.
      const auto captured = std::find_if(received, pieces.messages.end(), [&](const CapturedMessage& one) {
        return !one.is_sent && one.tag == all[j].tag;
      });
      if (captured == pieces.messages.end()) throw InternalError("no graph reads " + to_text(all[j].tag));
      named_in_errors(all[j], [&] { fill(*captured, receive(all[j], "message")); });
    }
    for (std::size_t j = i; j < end; ++j) {
      if (is_compute(all[j])) named_in_errors(all[j], [&] { parameters_.require(all[j].stage); });
    }
    named_in_errors(all[i], [&] { pieces.graphs.at(graph)->replay(); });
    if (records_events()) times_->replayed(pieces.marks.at(graph), waits);
    ++graph;
    i = end;
  }
}

/// Starts what these instructions need of parameters. In the order of the program, because another replica may run it
/// eagerly.
void Executor::start_gathering(std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const Instruction& instruction = program_->instructions[i];
    const bool gathers = is_compute(instruction) || instruction.action.kind() == ActionKind::kUnshard;
    if (gathers) parameters_.unshard(instruction.stage);
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

/// The message that a graph reads in place of one that arrives.
Message Executor::placeholder(const Tag& tag) {
  const CapturedMessage& known = graphs_->learned(tag);
  CapturedMessage& captured = pieces_->messages.emplace_back(known);
  Message message{{}, known.header, known.form};
  for (std::size_t t = 0; t < known.tensors.size(); ++t) {
    at::Tensor& place = message.tensors.emplace_back();
    if (!known.tensors[t].defined()) continue;
    place = at::empty_like(known.tensors[t], at::TensorOptions().device(world_.device()));
    captured.tensors[t] = view_of(place);
    if (known.needs_gradients[t]) place.set_requires_grad(true);
  }
  return message;
}

/// Brings a message that has arrived to where a graph reads it.
void Executor::fill(const CapturedMessage& captured, const Message& real) {
  const bool is_same_form = captured.form == real.form || (captured.form && real.form && *captured.form == *real.form);
  bool fits = is_same_form && captured.header == real.header && captured.tensors.size() == real.tensors.size();
  for (std::size_t t = 0; t < real.tensors.size() && fits; ++t) {
    const at::Tensor& place = captured.tensors[t];
    const at::Tensor& tensor = real.tensors[t];
    fits = place.defined() == tensor.defined() &&
           (!tensor.defined() || (place.sizes() == tensor.sizes() && place.scalar_type() == tensor.scalar_type()));
    if (fits && tensor.defined()) place.copy_(tensor.detach(), /*non_blocking=*/true);
  }
  if (fits) return;
  const std::string why = to_text(captured.tag) +
                          " has another shape, type or number in it than when the step was captured: what a stage "
                          "returns may depend on the shapes of its inputs alone, or leave out .graph";
  graphs_->stay_eager(why);
  throw InvalidArgument(why);
}

/// Where the graph leaves what a SEND sends.
void Executor::note_sent(const Instruction& instruction) {
  const Message written = message_of(instruction);
  CapturedMessage& captured = pieces_->messages.emplace_back();
  captured.tag = instruction.tag;
  captured.is_sent = true;
  captured.header = written.header;
  captured.form = written.form;
  for (const at::Tensor& tensor : written.tensors) {
    if (tensor.defined() && (tensor.layout() != at::kStrided || tensor.device() != world_.device())) {
      throw InvalidArgument("a message has a tensor that no graph can write: sparse, or of another device");
    }
    captured.tensors.push_back(tensor.defined() ? lazy_view_of(tensor) : tensor);
    captured.needs_gradients.push_back(tensor.defined() && tensor.requires_grad());
  }
}

void Executor::send_copy(const Instruction& instruction, const CapturedMessage& captured) {
  Message message{{}, captured.header, captured.form};
  for (std::size_t t = 0; t < captured.tensors.size(); ++t) {
    at::Tensor copy = captured.tensors[t].defined() ? computed_copy(captured.tensors[t]) : at::Tensor();
    if (captured.needs_gradients[t]) copy.set_requires_grad(true);
    message.tensors.push_back(std::move(copy));
  }
  if (record_) bytes_ = message.bytes();
  world_.transport().send(instruction.peer, instruction.tag, std::move(message));
}

}  // namespace stagecraft

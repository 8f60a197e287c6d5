// The pieces of a captured step. A piece is what a rank computes between two messages:
//
//     RECV_F  RECV_F | F0 | SEND_F | F1 | SEND_F | B0 | SEND_B ...
//      host            graph  host   graph   host   graph
//
// A rank without messages has one piece. All pieces are captured before anything is exchanged. Messages are copied into
// the memory that a graph reads, and out of the memory that it has written, so that others never see that memory.

#include <algorithm>

#include "executor.h"
#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

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

}  // namespace

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

}  // namespace stagecraft

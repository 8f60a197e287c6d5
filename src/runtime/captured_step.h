#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "captured_pieces.h"
#include "graph_random.h"
#include "held_memory.h"
#include "made_memory.h"
#include "stagecraft/stage/stage.h"

namespace stagecraft {

class CaptureMemory;

/// A gradient that a graph writes. Graphs that continue each other's gradients share it.
struct CapturedGradient {
  explicit CapturedGradient(at::Tensor made) : tensor(std::move(made)), as_made(tensor.detach()) {}

  at::Tensor tensor;
  at::Tensor as_made;            // the memory that graphs write, whatever the caller makes of the tensor
  std::size_t storage_uses = 0;  // how many tensors share that memory, as captured

  /// Whether only graphs have it.
  [[nodiscard]] bool is_ours() const;
  /// Where the caller has given the tensor other memory (`p.grad.data = ...`), it is the caller's from now on.
  void regain();
};
using GradientPtr = std::shared_ptr<CapturedGradient>;

/// A step that is captured: its graphs, and what they share with the rest of the process.
struct CapturedStep {
  std::uint64_t number = 0;  // captures are counted
  CapturedPieces pieces;
  std::vector<at::Tensor> inputs;
  at::Tensor seeds;
  std::unique_ptr<StreamSeeds> random;
  // By parameter; null where there is none.
  std::vector<GradientPtr> before;
  std::vector<GradientPtr> after;
  std::vector<at::Tensor> losses;
  std::vector<Value> outputs;
  std::vector<std::size_t> changed_inputs;  // in place, by a stage
  std::vector<GivenMemory> given;           // memory of others that graphs read
  std::vector<GivenTensor> tensors;         // of them
  std::vector<HostNumber> numbers;
  bool is_settled = false;    // it has been replayed
  bool is_abandoned = false;  // the first replay has failed
  std::vector<KeptSince> kept;
  // Until it is settled: what modules kept before, and memory of graphs that others have, which nobody has computed.
  std::vector<Remembered> before_capture;
  std::vector<WeakMemory> made;
  UsedMemory used;
  std::vector<MovedOut> moved_out;  // the same memory, from then on
  bool reads_replaced = false;      // what it reads was replaced by something else
  bool begins_otherwise = false;    // this step finds tensors where the captured one has found none
  bool is_doubted = false;          // whether a step would still read it: an eager step shows

  /// Why an eager step would do something else than what was captured; null if it would not.
  [[nodiscard]] const char* why_outdated() const;
  /// Whether somebody has replaced what was read, by something else or by nothing.
  [[nodiscard]] bool lacks_what_it_read() const;
  /// Notes what has been replaced: after calls of the modules, or before the next ones; then the caller has done it.
  void note_replaced(bool by_modules);
  /// After an eager step that was watched: whether a replay would still do the same.
  void end_doubt(CaptureMemory& eager_step);
  /// Makes what modules would have put in the place of something else. Returns whether there was anything.
  bool put_again() const;
  void regain_gradients() const;
};

}  // namespace stagecraft

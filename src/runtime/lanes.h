#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "stagecraft/stage/stage.h"

/// Microbatches of a captured step side by side. One after the other, small kernels leave most of a GPU idle. In a
/// graph, every microbatch that is in flight has a branch of its own, a lane:
///
///     lane 0   0F0 1F0 2F0 2B0 1B0 0B0 0F2 ...
///     lane 1       0F1 1F1     2F1 2B1 1B1 ...
///
/// A microbatch stays on its lane, so that its memory is allocated, used and freed on one stream. Actions of one stage
/// follow the order of the program whatever their lanes, because a stage may have state, and gradients are sums whose
/// order makes their bits.
namespace stagecraft {

struct Program;

/// The lane of every microbatch: the first that is free when its first computation begins. A microbatch leaves its lane
/// after its last one. Where more than `most` are in flight, lanes are shared.
std::vector<std::size_t> lanes_of(const Program& program, std::size_t microbatches, std::size_t most);

/// Numbers stages by the order that they belong to: those that share the memory of a parameter or buffer have the same.
std::vector<std::size_t> orders_of(const std::vector<Stage>& stages);

/// Lane 0 is the stream that is current when it is made, and when it ends; others begin after what was issued there.
class Lanes {
 public:
  /// `branches`: the streams of the lanes from 1 on.
  Lanes(const std::vector<c10::Stream>& branches, std::size_t orders);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  /// Makes the lane's stream current, behind the last action of the same order.
  void enter(std::size_t lane, std::size_t order);
  /// After the action.
  void leave();
  /// Makes lane 0 current, behind all others.
  void join();

 private:
  struct Lane {
    c10::Stream stream;
    bool has_begun = false;
  };
  struct Order {
    std::optional<c10::Event> done;  // the last action
    std::size_t lane = 0;            // where it ran
  };

  std::vector<Lane> lanes_;
  std::vector<Order> orders_;
  std::optional<c10::Event> begin_;
  std::size_t lane_ = 0;   // of the action that runs
  std::size_t order_ = 0;  // the same
  bool is_joined_ = false;
};

}  // namespace stagecraft

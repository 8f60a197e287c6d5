#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/util/FunctionRef.h>

#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "device_times.h"
#include "lanes.h"
#include "loss_policy.h"
#include "parameter_store.h"
#include "program.h"
#include "segments.h"
#include "stagecraft/autograd/accumulators.h"
#include "stagecraft/autograd/backward.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/stage/packing.h"
#include "stagecraft/stage/random.h"
#include "stagecraft/transport/streams.h"
#include "step_graphs.h"
#include "step_inputs.h"
#include "tensor_watch.h"

namespace stagecraft {

class Fork;

/// The results of a step on one rank.
struct StepOutputs {
  std::vector<Value> outputs;  // by microbatch, of the last stage if kept
  // Inputs of the user that need a gradient, and their gradients, for a backward through the user's own graph.
  std::vector<at::Tensor> given;
  std::vector<at::Tensor> given_gradients;
  std::vector<StageShapes> shapes;  // with StepInputs::only_shapes
};

/// Runs programs on one rank. Holds the rank's stages, and what is in flight between two actions. One microbatch in one
/// stage:
///
///     RECV_F   the message may travel
///     F        message ──▶ incoming ──▶ the stage's forward ──▶ outgoing; its graph is kept (Backward)
///     SEND_F   outgoing ──▶ message
///     RECV_B   the message may travel
///     B, I     message ──▶ gradients_in ──▶ the graph ──▶ gradients_out; B adds to the gradients of weights
///     SEND_B   gradients_out ──▶ message
///     W        after an I: adds to the gradients of weights, and the graph is gone
///
/// With Recompute the graph is dropped after F, and B or I begins by computing it again from `incoming`: see Segment.
/// Between neighbours on one rank there is no message: F and B move their results into the other stage's flight.
/// Messages carry the boundary between two stages, skip connections included (Wiring). UNSHARD, RESHARD and REDUCE_GRAD
/// are about a stage, not about a microbatch: see ParameterStore. For the weights of losses, see LossPolicy.
class Executor {
 public:
  /// All arguments must outlive the executor.
  Executor(World& world, const std::vector<Stage>& stages, const PipelineOptions& options, const Wiring& wiring,
           int microbatches, ParameterStore& parameters, LossPolicy& losses);

  /// `program` must fit the wiring and the microbatches of the constructor. Throws StepError or AbortedError; call
  /// `clear` afterwards.
  StepOutputs run(const Program& program, const StepInputs& inputs);
  /// Drops everything in flight.
  void clear();

  void on(ActionKind kind, std::function<void(const ActionContext&)> handler) {
    handlers_[static_cast<std::size_t>(kind)] = std::move(handler);
  }
  void set_recording(bool record) { record_ = record; }
  /// Drops the graphs of all captured steps.
  void forget_graphs() {
    if (graphs_) graphs_->forget();
  }
  [[nodiscard]] const Timeline& timeline() const { return timeline_; }
  [[nodiscard]] CapturedSteps captured() const;

 private:
  using Handlers = std::array<std::function<void(const ActionContext&)>, kActionKinds>;

  /// One microbatch in one stage, from the arrival of its input to the end of its backward.
  struct Flight {
    bool has_input = false;
    bool has_gradient = false;
    std::size_t lane = 0;   // which of the rank's streams computes it: see executor_overlap.cpp and lanes.h
    std::int64_t rows = 0;  // of the user's input that the microbatch was made from; 0 if unknown
    ValueList incoming;     // what crossed the boundary before the stage
    ValueList outgoing;     // what is to cross the one after it
    // For the tensors of all items after the stage, and before it, one after the other.
    std::vector<at::Tensor> gradients_in;
    std::vector<at::Tensor> gradients_out;
    std::vector<std::uint32_t> tensors_after;   // how many tensors each item after the stage has
    std::vector<std::uint32_t> tensors_before;  // the same before it
    std::vector<std::int32_t> leaves;           // per item before: where its tensors are among the inputs; -1: nowhere
    std::vector<at::Tensor> given;              // inputs of the user's that need a gradient
    std::vector<at::Tensor> seeds;              // gradients of the losses, which come after the outputs
    std::vector<SegmentFlight> segments;        // as the stage has
    std::function<void()> weights;
  };

  struct Partner;

  /// Microbatches that are computed side by side.
  struct SideBySide {
    std::vector<std::size_t> lanes;   // by microbatch
    std::vector<std::size_t> orders;  // by stage
    TensorWatch watch;
    Lanes streams;

    SideBySide(std::vector<std::size_t> lanes_of_microbatches, std::vector<std::size_t> orders_of_stages,
               StepGraphs& graphs, c10::DeviceType device);
  };

  struct Place {
    StageId stage;
    bool is_first;
    bool is_last;
    std::vector<Segment> segments;
    bool keeps_inputs = false;                              // until the backward, for segments that are computed again
    Packer packer;                                          // of what crosses to the next stage
    std::vector<std::optional<Accumulators>> accumulators;  // of its parameters' gradients, by lane
  };

  Flight& flight(std::uint32_t stage, MicrobatchId microbatch) {
    return flights_[stage * microbatches_ + microbatch.index()];
  }

  void begin_times();
  void wait_for_earlier_steps();
  void empty_flights();
  void run_instructions(std::size_t begin, std::size_t end);
  /// Runs the instruction's part of the step; what is thrown becomes an error that names it.
  void named_in_errors(const Instruction& instruction, c10::function_ref<void()> run);
  bool run_as_graph(const StepInputs& inputs);
  [[nodiscard]] StepGraphs::Outlook agreed(StepGraphs::Outlook own) const;
  void capture_pieces(const StepGraphs::Execution::CapturePiece& capture_piece);
  void replay_pieces(CapturedPieces& pieces);
  [[nodiscard]] std::size_t end_of_piece(std::size_t begin) const;
  Message placeholder(const Tag& tag);
  void fill(const CapturedMessage& captured, const Message& real);
  void note_sent(const Instruction& instruction);
  void send_copy(const Instruction& instruction, const CapturedMessage& captured);
  void start_gathering(std::size_t begin, std::size_t end);
  void begin_lanes();
  void end_lanes();
  void execute_on_lane(const Instruction& instruction);
  [[nodiscard]] std::string why_eager() const;
  [[nodiscard]] bool records_events() const { return record_ && times_.has_value(); }
  void drop_flights();
  void execute(const Instruction& instruction);
  void execute_alone(const Instruction& instruction);
  void execute_overlap(const Instruction& first, const Instruction& second, const Action& overlap);
  bool overlaps_by_itself(const Instruction& forward, const Instruction& backward);
  void run_overlapped(const Instruction& forward, const Instruction& backward, std::optional<Fork>& fork);
  Value run_with_partner(const Instruction& instruction, const StageCall& call);
  void begin_sides();
  void hold(Flight& in);
  void release_held();
  void use_accumulators(std::uint32_t stage, const Flight& in);
  double require_parameters(std::uint32_t stage);
  void perform(const Instruction& instruction);
  void forward(const Instruction& instruction);
  Value run_forward(const Instruction& instruction, const StageCall& call);
  void compute_again(const Instruction& instruction, std::size_t segment);
  void backward(const Instruction& instruction);
  void begin_backward(const Instruction& instruction);
  void end_backward(const Instruction& instruction, std::vector<at::Tensor>& gradients, bool at_once);
  void weight_part(const Instruction& instruction);
  /// While it lives, a backward of the stage may not draw random numbers, if the stage wants that.
  [[nodiscard]] std::optional<NoRandom> no_random_in_backward(std::uint32_t stage) const;
  [[nodiscard]] bool changes_later(std::uint32_t stage, const at::Tensor& tensor) const;
  Message message_of(const Instruction& instruction);
  void part_from_inputs(MicrobatchId microbatch, std::vector<at::Tensor>& tensors) const;
  void send(const Instruction& instruction);

  void await_input(const Instruction& instruction);
  void await_gradient(const Instruction& instruction);
  Message receive(const Instruction& instruction, const char* what);
  ValueList gather_arguments(std::uint32_t stage, MicrobatchId microbatch);
  ValueDict gather_keywords(std::uint32_t stage, MicrobatchId microbatch);
  [[nodiscard]] RandomScope random_numbers(std::uint32_t stage, MicrobatchId microbatch) const;
  [[nodiscard]] Value as_taken(const Value& given, bool copies) const;
  Value with_leaves_for_given(const Value& value, Flight& in);
  void hand_on(std::uint32_t stage, Flight& in, const Value& output);
  void add_relayed_roots(std::uint32_t stage, const Flight& in);
  void check_rows(const Flight& in, MicrobatchId microbatch) const;
  void add_losses(std::uint32_t stage, MicrobatchId microbatch, const Value& output);
  std::vector<at::Tensor> run_backward(const Instruction& instruction, bool at_once);
  void pass_gradients_back(std::uint32_t stage, Flight& in, std::vector<at::Tensor>& gradients);
  /// Throws StepError for the instruction that runs, with the schedule around it.
  [[noreturn]] void fail(const std::string& why) const;

  World& world_;
  const std::vector<Stage>& stages_;
  const PipelineOptions& options_;
  const Wiring& wiring_;
  std::size_t microbatches_;
  ParameterStore& parameters_;
  LossPolicy& losses_;
  Handlers handlers_;
  bool record_ = false;
  Timeline timeline_;
  std::optional<DeviceTimes> times_;  // on a device with streams
  std::deque<c10::Event> ends_;       // of steps that the device may still compute
  std::optional<StepGraphs> graphs_;  // with PipelineOptions::graph
  bool is_capturing_ = false;
  std::optional<SideBySide> side_by_side_;  // while a step without messages is captured
  std::string why_one_lane_;                // if later captures must not have several
  int lanes_captured_ = 1;
  std::int64_t most_handed_on_ = 0;   // bytes of one microbatch from one stage of the rank to another
  CapturedPieces* pieces_ = nullptr;  // of the step that is captured
  std::vector<Place> places_;
  std::vector<Flight> flights_;
  const Program* program_ = nullptr;
  const StepInputs* inputs_ = nullptr;
  const Instruction* current_ = nullptr;  // the one that runs, for errors
  StepOutputs outputs_;
  // Of the forward or backward that runs; empty in between, and kept for their memory.
  std::vector<at::Tensor> leaves_;           // what the backward gives gradients to
  std::vector<at::Tensor> inner_leaves_;     // the same of the last segment, if it is not the first
  std::vector<at::Tensor> roots_;            // what gradients come for
  std::vector<at::Tensor> first_roots_;      // the same of the first segment, if it is not the last
  std::vector<at::Tensor> arriving_;         // these gradients
  std::vector<at::Tensor> relayed_;          // those for items that only pass through, after those of the outputs
  bool has_sides_ = false;                   // the step uses two streams
  std::optional<c10::Stream> own_stream_;    // of the rank, if the step uses two
  std::optional<LentStream> second_stream_;  // made for the first schedule with overlaps on a device with streams
  ValueList held_values_;                    // until nothing runs beside what has read them
  std::vector<at::Tensor> held_;
  Partner* partner_ = nullptr;  // of the forward that runs
  double waited_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace stagecraft

#include "stagecraft/runtime/pipeline.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <sstream>

#include "check_options.h"
#include "clipping.h"
#include "executor.h"
#include "handshake.h"
#include "loss_policy.h"
#include "loss_scaler.h"
#include "master_parameters.h"
#include "program.h"
#include "replicated_parameters.h"
#include "safe_operators.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/name_pattern.h"
#include "stagecraft/runtime/timeline_message.h"
#include "stagecraft/runtime/together.h"
#include "stagecraft/stage/stand_ins.h"
#include "stagecraft/transport/streams.h"
#include "step_inputs.h"

namespace stagecraft {
namespace {

constexpr std::string_view kComparison = "the comparison of the pipeline's options on all ranks";

}  // namespace

class Pipeline::Implementation {
 public:
  Implementation(World& world, std::vector<Stage> stages, PipelineOptions options)
      : world_(world), stages_(std::move(stages)), options_(std::move(options)) {
    if (computes_in_bfloat16()) settle_bfloat16_kernels();
    // Settled like a step: a rank that is done here may fail in its first step while others are still here.
    std::string differences;
    stagecraft::together(world_, [&] {
      set_up(gather_stages());
      const Comparison comparison = compare_ranks();
      differences = comparison.differences;
      if (!differences.empty()) return;
      parameters_ = make_parameters();
      parameters_->make_equal();
      const RankId last = schedule().placement.rank_of(StageId(schedule().stages() - 1));
      losses_.emplace(world_, options_, schedule().microbatches,
                      LossPolicy::Place{has_last(), last, comparison.losses.any_auxiliary});
      has_loss_ = comparison.losses.has_loss || comparison.losses.any_auxiliary;
      executor_.emplace(world_, stages_, options_, *wiring_, schedule().microbatches, *parameters_, *losses_);
      record_timeline(false);
    });
    if (!differences.empty()) throw InvalidArgument(differences);
  }

  [[nodiscard]] bool computes_in_bfloat16() const {
    const Precision& precision = options_.precision;
    if (precision.compute == at::kBFloat16 || precision.autocast == at::kBFloat16) return true;
    return std::any_of(stages_.begin(), stages_.end(), [](const Stage& stage) {
      const NamedTensors& all = stage.parameters();
      return std::any_of(all.begin(), all.end(),
                         [](const auto& one) { return one.second.scalar_type() == at::kBFloat16; });
    });
  }

  std::unique_ptr<ParameterStore> make_parameters() {
    const Placement& placement = schedule().placement;
    if (options_.shard == Shard::kNone && !options_.precision.has_masters()) {
      return std::make_unique<ReplicatedParameters>(world_, stages_, options_, placement, active_->completion_order);
    }
    return std::make_unique<MasterParameters>(world_, stages_, options_, placement, active_->completion_order);
  }

  struct Comparison {
    std::string differences;  // empty: all ranks were given the same pipeline
    KnownLosses losses;
  };
  /// Rank 0 compares, so that no other rank holds the statements of all.
  Comparison compare_ranks() {
    const auto during = world_.everyone().during(kComparison);
    std::vector<std::string> statements;
    for (Message& own : world_.everyone().collect({{}, statement_of(stages_, options_, schedule())}, 0)) {
      statements.push_back(std::move(own.header));
    }
    Message verdict;
    if (!statements.empty()) {
      const KnownLosses known = known_losses(statements);
      verdict.header = {known.any_auxiliary ? '1' : '0', known.has_loss ? '1' : '0'};
      const std::string differences = disagreement(statements);
      verdict.header += differences.empty() ? useless_patterns(statements) : differences;
    }
    verdict = world_.everyone().broadcast(std::move(verdict), 0);
    return {verdict.header.substr(2), {verdict.header[0] == '1', verdict.header[1] == '1'}};
  }

  StepResult step(const ValueList& arguments, const StepOptions& options, StepKind kind) {
    return steered([&](StepInputs& inputs) { splitter_->split_batch(inputs, arguments, options); }, options, kind);
  }

  StepResult step_microbatches(const std::vector<ValueList>& arguments, const std::vector<Value>& targets,
                               const StepOptions& options, StepKind kind) {
    return steered([&](StepInputs& inputs) { splitter_->take_microbatches(inputs, arguments, targets, options); },
                   options, kind);
  }

  std::vector<StageShapes> infer_shapes(const ValueList& arguments, const StepOptions& options) {
    std::vector<StageShapes> shapes;
    const auto prepare = [&](StepInputs& inputs) {
      splitter_->split_batch(inputs, arguments, options);
      inputs.targets.clear();
      for (ValueList& list : inputs.arguments) {
        for (Value& value : list) value = on_meta(value);
      }
      for (ValueDict& dict : inputs.keywords) {
        for (auto& [name, value] : dict) value = on_meta(value);
      }
    };
    together(prepare, options, StepKind::kShapes, &shapes);
    return shapes;
  }

  void record_timeline(bool record) {
    is_recording_ = record;
    executor_->set_recording(record || (steering_ && steering_->records()));
  }

  [[nodiscard]] StepKind kind_of_step() const { return has_loss_ ? StepKind::kTraining : StepKind::kForward; }
  void require_unscaled(const char* what) const {
    if (scaler_) scaler_->require_unscaled(what);
  }

  /// The lowered schedule of training.
  [[nodiscard]] const Schedule& schedule() const { return *active_->schedule; }

  World& world_;
  std::vector<Stage> stages_;
  PipelineOptions options_;
  Program evaluation_;
  std::optional<Wiring> wiring_;
  std::optional<InputSplitter> splitter_;
  std::unique_ptr<ParameterStore> parameters_;
  std::optional<LossPolicy> losses_;
  std::optional<Executor> executor_;
  std::unique_ptr<Steering> steering_;  // with schedule "auto"
  std::optional<LossScaler> scaler_;    // with float16
  std::uint64_t steps_ = 0;

 private:
  /// The stages of every rank of the pipeline. All ranks call it, whatever their options, so that ranks with different
  /// options do not wait for each other forever.
  std::vector<std::vector<StageId>> gather_stages() {
    std::ostringstream own;
    own << world_.replicas();
    for (const Stage& stage : stages_) own << ' ' << stage.index().value;
    std::vector<std::vector<StageId>> all;
    int rank = 0;
    const auto during = world_.everyone().during(kComparison);
    for (const std::string& text : world_.everyone().all_gather(own.str())) {
      std::istringstream in(text);
      int replicas = 0;
      in >> replicas;
      if (replicas != world_.replicas()) {
        throw InvalidArgument("rank " + std::to_string(rank) + " has " + std::to_string(replicas) + " replicas, rank " +
                              std::to_string(world_.world_rank().value) + " has " + std::to_string(world_.replicas()) +
                              ": start all ranks with the same number");
      }
      if (rank++ % world_.replicas() != world_.replica()) continue;
      std::vector<StageId>& stages_of_rank = all.emplace_back();
      for (int stage = 0; in >> stage;) stages_of_rank.emplace_back(stage);
    }
    return all;
  }

  void set_up(const std::vector<std::vector<StageId>>& stages_by_rank) {
    std::sort(stages_.begin(), stages_.end(), [](const Stage& a, const Stage& b) { return a.index() < b.index(); });
    check_options(options_, stages_, world_);
    for (const Stage& stage : stages_) {
      for (const auto& [name, parameter] : stage.parameters()) {
        if (fits_any(options_.freeze, name)) parameter.set_requires_grad(false);
      }
    }
    if (options_.precision.is_half()) scaler_.emplace(options_.precision.scaling.value_or(LossScaling()));
    Schedule starting = resolve(options_, stages_by_rank, world_.rank());
    check_stages(stages_, starting, world_.rank());
    check_ties(stages_, options_.ties, starting.placement);
    const bool gathers = options_.shard == Shard::kParameters;
    if (gathers && options_.passes == kDefaultLowering) options_.passes = kShardedLowering;
    evaluation_ = program_of(forwards_of(starting), gathers ? "unshard_reshard=2,send_recv" : "send_recv");
    if (options_.schedule.is_auto()) {
      // With graphs the first step of a schedule runs without one, and the second is captured.
      const int warm_ups = options_.graph.is_on() ? 2 : 1;
      steering_ = make_steering(world_, options_.automatic, starting, options_.passes, warm_ups);
    }
    active_ = &programs_[0].emplace(program_of(std::move(starting), options_.passes));
    wiring_.emplace(schedule().stages(), options_.edges);
    trains_ = schedule().trains();
    splitter_.emplace(options_, schedule().microbatches, has_first(), has_last());
  }

  [[nodiscard]] Program program_of(Schedule schedule, const std::string& passes) const {
    return compile(lower(std::move(schedule), passes, world_.transport().model()), world_.rank(),
                   world_.pipeline_ranks());
  }

  // --- schedule "auto" ---

  /// Runs a step with `together`. After a successful training step, the steering chooses the schedule of the next one.
  template <typename Prepare>
  StepResult steered(const Prepare& prepare, const StepOptions& options, StepKind kind) {
    const bool is_timed = kind == StepKind::kTraining && steering_ && !steering_->is_decided();
    if (is_timed) wait_for_device();
    const double begin = world_.transport().now();
    StepResult result = together(prepare, options, kind);
    if (!is_timed) return result;
    wait_for_device();
    const double seconds = world_.transport().now() - begin;
    const bool was_recorded = steering_->records();
    try {
      stagecraft::together(world_, [&] { steering_->after_step(executor_->timeline(), seconds); });
      // Graphs of schedules that are not run again, or not with events, would keep their memory.
      if (steering_->records() != was_recorded || steering_->is_decided()) executor_->forget_graphs();
    } catch (...) {
      use(steering_->next());
      throw;
    }
    use(steering_->next());
    return result;
  }

  void wait_for_device() const {
    if (has_streams(world_.device())) current_stream(world_.device()).synchronize();
  }

  /// Uses this schedule from the next step on. The executor stays: it depends only on the placement and the number of
  /// microbatches.
  void use(std::size_t number) {
    record_timeline(is_recording_);
    auto& program = programs_[number];
    if (!program) program = program_of(steering_->schedule(number), options_.passes);
    if (active_ == &*program) return;
    active_ = &*program;
    parameters_->set_order(active_->completion_order);
  }

  [[nodiscard]] bool has_first() const { return stages_.front().index().value == 0; }
  [[nodiscard]] bool has_last() const { return stages_.back().index().value + 1 == schedule().stages(); }

  void check_inputs(const StepInputs& inputs, const ValueList* first) const {
    if (has_first() && (first == nullptr || first->empty()) && inputs.keywords.front().empty()) {
      throw InvalidArgument("the first stage is on this rank and got no input: give step its arguments");
    }
    if (!has_loss_ && !inputs.targets.empty() && inputs.kind != StepKind::kEvaluation) {
      throw InvalidArgument(
          "there is a target, but no loss: set it in the options of the pipeline, or leave out the target to run "
          "forwards alone");
    }
    if (!inputs.training()) return;
    if (!trains_) {
      throw InvalidArgument("the schedule " + schedule().name +
                            " has no backward: use eval, or a schedule that trains");
    }
    if (!has_last()) return;
    if (!options_.loss) {
      throw InvalidArgument(
          "stages have auxiliary losses, but the last one has no loss: set it in the options of the pipeline");
    }
    if (inputs.targets.empty()) {
      throw InvalidArgument("the last stage is on this rank and got no target: give step one");
    }
  }

  // --- a step ---

  template <typename Prepare>
  StepResult together(const Prepare& prepare, const StepOptions& options, StepKind kind,
                      std::vector<StageShapes>* shapes = nullptr) {
    StepResult result;
    const bool training = kind == StepKind::kTraining;
    const auto window = static_cast<std::uint64_t>(options_.accumulate);
    const bool completes = training && (steps_ + 1) % window == 0;
    const auto work = [&] {
      StepInputs inputs;
      inputs.kind = kind;
      inputs.number = steps_;
      inputs.loss_keywords = &options.loss_keywords;
      inputs.keep_outputs = options.return_outputs || !training;
      prepare(inputs);
      check_inputs(inputs, inputs.arguments.empty() ? nullptr : &inputs.arguments.front());
      inputs.first_microbatch = world_.replica() * schedule().microbatches;
      inputs.update = {training, steps_ % window == 0, completes, kind == StepKind::kForward};
      if (scaler_ && training) scaler_->require_unscaled("a step that adds to them");
      losses_->set_scale(scaler_ ? scaler_->state().scale : 1);
      losses_->begin(inputs);
      result = run(inputs, shapes);
    };
    const auto clear = [&] { executor_->clear(); };
    try {
      stagecraft::together(world_, work, clear);
    } catch (...) {
      clear();
      if (is_counted(kind)) ++steps_;
      if (scaler_) scaler_->set_waiting(false);
      throw;
    }
    if (is_counted(kind)) ++steps_;
    if (scaler_ && completes) scaler_->set_waiting(true);
    return result;
  }

  StepResult run(const StepInputs& inputs, std::vector<StageShapes>* shapes) {
    std::vector<std::function<void()>> back_to_training;
    if (inputs.kind == StepKind::kEvaluation) {
      for (const Stage& stage : stages_) back_to_training.push_back(stage.enter_evaluation());
    }
    struct Restore {
      std::vector<std::function<void()>>& all;
      ~Restore() {
        for (const auto& restore : all) restore();
      }
    } const restore{back_to_training};

    StepOutputs outputs = executor_->run(inputs.training() ? *active_ : evaluation_, inputs);
    if (!outputs.given.empty()) accumulate_into(outputs.given, outputs.given_gradients);
    StepResult result;
    if (shapes != nullptr) {
      *shapes = std::move(outputs.shapes);
      return result;
    }
    if (has_last() && inputs.keep_outputs) result.output = options_.merge_outputs(outputs.outputs);
    losses_->end(result);
    return result;
  }

  std::map<std::size_t, std::optional<Program>> programs_;  // by number; one, unless the schedule is "auto"
  const Program* active_ = nullptr;                         // the program that training runs
  bool trains_ = false;                                     // the schedule
  bool has_loss_ = false;                                   // on some rank
  bool is_recording_ = false;                               // what the user asked for
};

Pipeline::Pipeline(World& world, std::vector<Stage> stages, PipelineOptions options)
    : implementation_(std::make_unique<Implementation>(world, std::move(stages), std::move(options))) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

StepResult Pipeline::step(const ValueList& arguments, const StepOptions& options) {
  return implementation_->step(arguments, options, implementation_->kind_of_step());
}

StepResult Pipeline::step_microbatches(const std::vector<ValueList>& arguments, const std::vector<Value>& targets,
                                       const StepOptions& options) {
  return implementation_->step_microbatches(arguments, targets, options, implementation_->kind_of_step());
}

StepResult Pipeline::eval(const ValueList& arguments, const StepOptions& options) {
  return implementation_->step(arguments, options, StepKind::kEvaluation);
}

StepResult Pipeline::eval_microbatches(const std::vector<ValueList>& arguments, const std::vector<Value>& targets,
                                       const StepOptions& options) {
  return implementation_->step_microbatches(arguments, targets, options, StepKind::kEvaluation);
}

std::vector<StageShapes> Pipeline::infer_shapes(const ValueList& arguments, const StepOptions& options) {
  return implementation_->infer_shapes(arguments, options);
}

std::vector<at::Tensor> Pipeline::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& [name, parameter] : named_parameters()) all.push_back(parameter);
  return all;
}

NamedTensors Pipeline::named_parameters() const { return implementation_->parameters_->parameters(); }
void Pipeline::refresh_modules() {
  ParameterStore& parameters = *implementation_->parameters_;
  together(
      implementation_->world_,
      [&] {
        parameters.begin_step({.training = false});
        for (std::size_t stage = 0; stage < stages().size(); ++stage) parameters.require(stage);
      },
      [&] { parameters.cancel(); });
}

void Pipeline::set_attached() { implementation_->parameters_->set_attached(); }
const Masters* Pipeline::masters() const { return implementation_->parameters_->masters(); }

at::Tensor Pipeline::gradient_norm() const {
  at::Tensor norm;
  implementation_->require_unscaled("their norm");
  const std::vector<at::Tensor> counted =
      counted_parameters(stages(), implementation_->options_.ties, *implementation_->parameters_);
  together(implementation_->world_, [&] {
    norm = stagecraft::gradient_norm(implementation_->world_, counted, masters() && masters()->are_parts());
  });
  return norm;
}

at::Tensor Pipeline::clip_gradient_norm(double most) {
  if (!(most > 0))
    throw InvalidArgument("a gradient norm is limited to a positive number, got " + std::to_string(most));
  const at::NoGradGuard no_graph;
  const at::Tensor norm = gradient_norm();
  const at::Tensor scale = (most / (norm + 1e-6)).clamp_max_(1.0);
  for (const at::Tensor& parameter : parameters()) {
    if (parameter.grad().defined())
      parameter.mutable_grad().mul_(scale.to(c10::toRealValueType(parameter.scalar_type())));
  }
  return norm;
}

void Pipeline::clip_gradient_values(double most) {
  if (!(most > 0)) throw InvalidArgument("gradients are limited to a positive number, got " + std::to_string(most));
  implementation_->require_unscaled("their clipping");
  const at::NoGradGuard no_graph;
  for (const at::Tensor& parameter : parameters()) {
    if (parameter.grad().defined()) parameter.mutable_grad().clamp_(-most, most);
  }
}

bool Pipeline::unscale_gradients() {
  std::optional<LossScaler>& scaler = implementation_->scaler_;
  if (!scaler) return true;
  bool is_finite = true;
  together(implementation_->world_, [&] { is_finite = scaler->unscale(implementation_->world_, parameters()); });
  return is_finite;
}

LossScalingState Pipeline::loss_scaling() const {
  return implementation_->scaler_ ? implementation_->scaler_->state() : LossScalingState();
}

void Pipeline::set_loss_scaling(const LossScalingState& state) {
  if (!(state.scale > 0) || std::isinf(state.scale) || state.updates < 0) {
    throw InvalidArgument("the scale of losses is a positive number, got " + std::to_string(state.scale) + " after " +
                          std::to_string(state.updates) + " updates");
  }
  if (implementation_->scaler_) implementation_->scaler_->set_state(state);
}

World& Pipeline::world() const { return implementation_->world_; }
const std::vector<Stage>& Pipeline::stages() const { return implementation_->stages_; }
bool Pipeline::has_first_stage() const { return stages().front().index().value == 0; }
bool Pipeline::has_last_stage() const { return stages().back().index().value + 1 == schedule().stages(); }
std::uint64_t Pipeline::steps() const { return implementation_->steps_; }
void Pipeline::set_steps(std::uint64_t steps) { implementation_->steps_ = steps; }
const Schedule& Pipeline::schedule() const { return implementation_->schedule(); }

void Pipeline::on(ActionKind kind, std::function<void(const ActionContext&)> handler) {
  implementation_->executor_->on(kind, std::move(handler));
}

void Pipeline::record_timeline(bool record) { implementation_->record_timeline(record); }
const Timeline& Pipeline::timeline() const { return implementation_->executor_->timeline(); }

std::vector<Timeline> Pipeline::collect_timelines(RankId to) const {
  std::vector<Timeline> all;
  World& world = implementation_->world_;
  together(world, [&] {
    const auto during = world.pipeline().during("the timelines");
    for (const Message& message : world.pipeline().collect(to_message(timeline()), to.value)) {
      all.push_back(to_timeline(message));
    }
  });
  return all;
}

CapturedSteps Pipeline::captured() const { return implementation_->executor_->captured(); }

const Steering* Pipeline::steering() const { return implementation_->steering_.get(); }

}  // namespace stagecraft

#include "stagecraft/runtime/pipeline.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <ranges>
#include <sstream>

#include "executor.h"
#include "handshake.h"
#include "program.h"
#include "stagecraft/core/error.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"
#include "stagecraft/stage/stand_ins.h"
#include "step_inputs.h"
#include "tied_parameters.h"

namespace stagecraft {
namespace {

std::string number(std::int64_t value) { return std::to_string(value); }

Schedule read_schedule(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw InvalidArgument("the schedule file '" + path + "' cannot be read: give a CSV file, or a known name");
  return Schedule::from_rows(parse_csv(text.str()), path);
}

Schedule resolve(const PipelineOptions& options, int ranks, int stages_per_rank) {
  const bool is_file = options.schedule.ends_with(".csv");
  if (!options.plan && !is_file) {
    return make_schedule(
        options.schedule,
        {.ranks = ranks, .stages_per_rank = stages_per_rank, .microbatches = std::max(1, options.microbatches)});
  }
  Schedule schedule = options.plan ? *options.plan : read_schedule(options.schedule);
  if (schedule.ranks() != ranks) {
    throw InvalidArgument("the schedule is for " + number(schedule.ranks()) + " ranks, but the world has " +
                          number(ranks) + ": start as many, or give another schedule");
  }
  if (options.microbatches != 0 && options.microbatches != schedule.microbatches) {
    throw InvalidArgument("the schedule is for " + number(schedule.microbatches) + " microbatches, but " +
                          number(options.microbatches) +
                          " are asked for: leave the number out, or give another schedule");
  }
  return schedule;
}

void check_stages(const std::vector<Stage>& stages, const Schedule& schedule, RankId rank) {
  const auto expected = schedule.placement.stages_of(rank);
  std::string wanted;
  for (const StageId stage : expected) wanted += (wanted.empty() ? "" : ", ") + number(stage.value);
  for (const Stage& stage : stages) {
    if (!schedule.placement.contains(stage.index())) {
      throw InvalidArgument("rank " + number(rank.value) + " has stage " + number(stage.index().value) +
                            ", but the pipeline has stages 0 to " + number(schedule.stages() - 1));
    }
  }
  const bool same = stages.size() == expected.size() &&
                    std::equal(stages.begin(), stages.end(), expected.begin(),
                               [](const Stage& stage, StageId id) { return stage.index() == id; });
  if (same) return;
  std::string got;
  for (const Stage& stage : stages) got += (got.empty() ? "" : ", ") + number(stage.index().value);
  throw InvalidArgument("rank " + number(rank.value) + " has stages " + (got.empty() ? "(none)" : got) +
                        ", but the schedule wants stages " + wanted +
                        " there: every rank makes its own, and no rank goes without");
}

/// Places of the rank's stages, in the order in which their gradients are complete.
std::vector<std::size_t> completion_order(const Program& program) {
  std::vector<std::size_t> order;
  for (const Instruction& instruction : std::views::reverse(program)) {
    if (!gives_weight_gradient(instruction.kind)) continue;
    if (std::find(order.begin(), order.end(), instruction.stage) == order.end()) order.push_back(instruction.stage);
  }
  std::reverse(order.begin(), order.end());
  return order;
}

/// Places of the rank's stages that have gradients and no REDUCE_GRAD, in the same order.
std::vector<std::size_t> never_reduced(const Program& program) {
  std::vector<std::size_t> stages = completion_order(program);
  std::erase_if(stages, [&](std::size_t stage) {
    return std::any_of(program.begin(), program.end(), [&](const Instruction& instruction) {
      return instruction.kind == ActionKind::kReduceGrad && instruction.stage == stage;
    });
  });
  return stages;
}

bool trains(const Schedule& schedule) {
  for (const Row& row : schedule.rows) {
    for (const Action& action : row) {
      if (gives_input_gradient(action.kind()) || action.is_overlap()) return true;
    }
  }
  return false;
}

}  // namespace

double StepResult::loss() const {
  if (losses.empty()) {
    throw InvalidArgument("this rank has no loss: ask for it where the last stage is, or set broadcast_loss");
  }
  double total = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) total += weights[i] * losses[i].item<double>();
  return total;
}

class Pipeline::Implementation {
 public:
  Implementation(World& world, std::vector<Stage> stages, PipelineOptions options)
      : world_(world), stages_(std::move(stages)), options_(std::move(options)) {
    agree([&] { set_up(); });
    const std::string differences =
        disagreement(world_.everyone().all_gather(statement_of(stages_, options_, schedule_)));
    if (!differences.empty()) throw InvalidArgument(differences);
    share_weights();
  }

  void share_weights() {
    if (!options_.ties.empty()) {
      tied_ = std::make_unique<TiedParameters>(world_, stages_, options_.ties, schedule_.placement);
      tied_->make_equal();
    }
    if (world_.replicas() == 1) return;
    averager_ = std::make_unique<Averager>(world_.more_peers(), stages_, completion_order(training_program_),
                                           options_.bucket_bytes, world_.device());
    averager_->make_equal();
    executor_->averager = averager_.get();
    executor_->averaged_last = never_reduced(training_program_);
  }

  StepResult step(const ValueList& arguments, const StepOptions& options, bool training) {
    return together([&](StepInputs& inputs) { splitter_->split_batch(inputs, arguments, options); }, options, training);
  }

  StepResult step_microbatches(const std::vector<ValueList>& arguments, const std::vector<Value>& targets,
                               const StepOptions& options) {
    return together([&](StepInputs& inputs) { splitter_->take_microbatches(inputs, arguments, targets, options); },
                    options, true);
  }

  std::vector<StageShapes> infer_shapes(const ValueList& arguments, const StepOptions& options) {
    std::vector<StageShapes> shapes;
    const auto prepare = [&](StepInputs& inputs) {
      splitter_->split_batch(inputs, arguments, options);
      inputs.only_shapes = true;
      inputs.targets.clear();
      for (ValueList& list : inputs.arguments) {
        for (Value& value : list) value = on_meta(value);
      }
      for (ValueDict& dict : inputs.keywords) {
        for (auto& [name, value] : dict) value = on_meta(value);
      }
    };
    together(prepare, options, /*training=*/false, &shapes);
    return shapes;
  }

  World& world_;
  std::vector<Stage> stages_;
  PipelineOptions options_;
  Schedule schedule_;
  Schedule evaluation_;
  std::optional<Wiring> wiring_;
  Program training_program_;
  Program evaluation_program_;
  std::optional<InputSplitter> splitter_;
  std::unique_ptr<TiedParameters> tied_;  // with ties
  std::unique_ptr<Averager> averager_;    // with replicas
  std::optional<Executor> executor_;
  bool trains_ = false;
  std::uint64_t steps_ = 0;

 private:
  void set_up() {
    std::sort(stages_.begin(), stages_.end(), [](const Stage& a, const Stage& b) { return a.index() < b.index(); });
    if (stages_.empty()) {
      throw InvalidArgument("rank " + number(world_.rank().value) + " has no stage: " + number(world_.size()) +
                            " ranks need at least as many stages; start fewer ranks, or cut the model further");
    }
    if (options_.microbatches < 0) {
      throw InvalidArgument("there must be at least 1 microbatch, got " + number(options_.microbatches));
    }
    if (options_.bucket_bytes < 1) {
      throw InvalidArgument("bucket_bytes is at least 1, got " + number(options_.bucket_bytes));
    }
    schedule_ = resolve(options_, world_.size(), static_cast<int>(stages_.size()));
    check_stages(stages_, schedule_, world_.rank());
    check_ties(stages_, options_.ties, schedule_.placement);
    evaluation_ = forwards_of(schedule_);
    if (!schedule_.is_lowered()) run_passes(schedule_, options_.passes);
    require_valid(schedule_, CommModel::kTagged);
    wiring_.emplace(schedule_.stages(), options_.edges);
    training_program_ = compile(schedule_, world_.rank());
    evaluation_program_ = compile(evaluation_, world_.rank());
    trains_ = trains(schedule_);
    splitter_.emplace(options_, schedule_.microbatches, has_first(), has_last());
    executor_.emplace(world_, stages_, options_, schedule_, *wiring_);
  }

  /// A mistake on one rank is an error on all.
  template <typename Work>
  void agree(const Work& work) {
    std::exception_ptr own;
    std::string message;
    try {
      work();
    } catch (const std::exception& error) {
      own = std::current_exception();
      message = error.what();
    }
    const std::vector<std::string> all = world_.everyone().all_gather(message);
    if (own) std::rethrow_exception(own);
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (!all[r].empty())
        throw AbortedError("rank " + number(static_cast<std::int64_t>(r)) + ": " + all[r], RankId(r));
    }
  }

  [[nodiscard]] bool has_first() const { return stages_.front().index().value == 0; }
  [[nodiscard]] bool has_last() const { return stages_.back().index().value + 1 == schedule_.stages(); }

  void check_inputs(const StepInputs& inputs, const ValueList* first) const {
    if (has_first() && (first == nullptr || first->empty()) && inputs.keywords.front().empty()) {
      throw InvalidArgument("the first stage is on this rank and got no input: give step its arguments");
    }
    if (!inputs.training) return;
    if (!trains_) {
      throw InvalidArgument("the schedule " + schedule_.name + " has no backward: use eval, or a schedule that trains");
    }
    if (!has_last()) return;
    if (!options_.loss) throw InvalidArgument("training needs a loss: set it in the options of the pipeline");
    if (inputs.targets.empty()) {
      throw InvalidArgument("the last stage is on this rank and got no target: give step one");
    }
  }

  // --- a step ---

  template <typename Prepare>
  StepResult together(const Prepare& prepare, const StepOptions& options, bool training,
                      std::vector<StageShapes>* shapes = nullptr) {
    std::exception_ptr own;
    StepResult result;
    try {
      StepInputs inputs;
      inputs.training = training;
      inputs.number = steps_;
      inputs.loss_keywords = &options.loss_keywords;
      inputs.keep_outputs = options.return_outputs || !training;
      prepare(inputs);
      check_inputs(inputs, inputs.arguments.empty() ? nullptr : &inputs.arguments.front());
      inputs.first_microbatch = world_.replica() * schedule_.microbatches;
      if ((training || options_.broadcast_loss) && !inputs.only_shapes) weigh_replicas(inputs);
      result = run(inputs, shapes);
    } catch (const AbortedError&) {
      own = std::current_exception();
    } catch (const std::exception& error) {
      own = std::current_exception();
      world_.transport().abort({world_.world_rank(), describe(error)});
    }
    if (training) ++steps_;
    if (own) executor_->clear();
    const auto failure = settle(own);
    if (!failure) return result;
    executor_->clear();
    if (own && failure->rank == world_.world_rank()) std::rethrow_exception(own);
    throw AbortedError(failure->message, failure->rank);
  }

  std::optional<Failure> settle(const std::exception_ptr& own) {
    try {
      return world_.transport().settle(world_.timeout());
    } catch (...) {
      if (own) std::rethrow_exception(own);
      throw;
    }
  }

  [[nodiscard]] std::string describe(const std::exception& error) const {
    if (dynamic_cast<const StepError*>(&error) != nullptr) return error.what();
    const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
    return world_.name() + ": " + (of_torch != nullptr ? of_torch->what_without_backtrace() : error.what());
  }

  /// A mean over the rows of all replicas is a weighted mean of their means.
  void weigh_replicas(StepInputs& inputs) {
    const int replicas = world_.replicas();
    if (replicas == 1) return;
    if (options_.loss_scale == LossScale::kSum) {
      inputs.replica_weight = replicas;
      return;
    }
    if (!has_first() && !has_last()) return;  // it does not know the rows, nor does it need them
    std::int64_t total = 0;
    bool all_know = true;
    for (const Message& message : world_.peers().all_gather(Message{{}, number(inputs.rows)})) {
      const std::int64_t rows = std::stoll(message.header);
      all_know &= rows > 0;
      total += rows;
    }
    if (all_know) inputs.replica_weight = static_cast<double>(inputs.rows * replicas) / static_cast<double>(total);
  }

  StepResult run(const StepInputs& inputs, std::vector<StageShapes>* shapes) {
    std::vector<std::function<void()>> back_to_training;
    if (!inputs.training && !inputs.only_shapes) {
      for (const Stage& stage : stages_) back_to_training.push_back(stage.enter_evaluation());
    }
    struct Restore {
      std::vector<std::function<void()>>& all;
      ~Restore() {
        for (const auto& restore : all) restore();
      }
    } const restore{back_to_training};

    const bool sums_ties = tied_ && inputs.training;
    const TiedParameters::Aside aside = sums_ties ? tied_->set_aside() : TiedParameters::Aside();
    StepOutputs outputs = inputs.training ? executor_->run(training_program_, schedule_, inputs)
                                          : executor_->run(evaluation_program_, evaluation_, inputs);
    if (sums_ties) tied_->sum();
    if (!outputs.given.empty()) accumulate_into(outputs.given, outputs.given_gradients);
    StepResult result;
    if (shapes != nullptr) {
      *shapes = std::move(outputs.shapes);
      return result;
    }
    const bool has_losses = has_last() && options_.loss && !inputs.targets.empty();
    if (has_losses) {
      result.losses = std::move(outputs.losses);
      result.weights = inputs.weights;
    }
    if (has_last() && inputs.keep_outputs) result.output = options_.merge_outputs(outputs.outputs);
    if (options_.broadcast_loss) share_losses(result, inputs.replica_weight / world_.replicas());
    return result;
  }

  /// Those of all replicas, to all ranks. `share`: what the losses of this replica count among them.
  void share_losses(StepResult& result, double share) {
    Message own;
    if (result.has_loss()) own.tensors = {at::stack(result.losses), at::tensor(result.weights, at::kDouble) * share};
    if (has_last() && world_.replicas() > 1) own = of_all_replicas(std::move(own));
    const RankId last = schedule_.placement.rank_of(StageId(schedule_.stages() - 1));
    const Message shared = world_.pipeline().broadcast(std::move(own), last.value);
    if (shared.tensors.empty()) return;
    result.losses = shared.tensors[0].unbind();
    const at::Tensor weights = shared.tensors[1].cpu();
    result.weights.assign(weights.const_data_ptr<double>(), weights.const_data_ptr<double>() + weights.numel());
  }

  Message of_all_replicas(Message own) {
    std::vector<at::Tensor> losses;
    std::vector<at::Tensor> weights;
    for (const Message& message : world_.peers().all_gather(std::move(own))) {
      if (message.tensors.empty()) continue;
      losses.push_back(message.tensors[0]);
      weights.push_back(message.tensors[1].cpu());
    }
    if (losses.empty()) return {};
    return {{at::cat(losses), at::cat(weights)}, ""};
  }
};

Pipeline::Pipeline(World& world, std::vector<Stage> stages, PipelineOptions options)
    : implementation_(std::make_unique<Implementation>(world, std::move(stages), std::move(options))) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

StepResult Pipeline::step(const ValueList& arguments, const StepOptions& options) {
  return implementation_->step(arguments, options, /*training=*/true);
}

StepResult Pipeline::step_microbatches(const std::vector<ValueList>& arguments, const std::vector<Value>& targets,
                                       const StepOptions& options) {
  return implementation_->step_microbatches(arguments, targets, options);
}

StepResult Pipeline::eval(const ValueList& arguments, const StepOptions& options) {
  return implementation_->step(arguments, options, /*training=*/false);
}

std::vector<StageShapes> Pipeline::infer_shapes(const ValueList& arguments, const StepOptions& options) {
  return implementation_->infer_shapes(arguments, options);
}

std::vector<at::Tensor> Pipeline::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& [name, parameter] : named_parameters()) all.push_back(parameter);
  return all;
}

NamedTensors Pipeline::named_parameters() const {
  NamedTensors all;
  for (const Stage& stage : stages()) {
    for (const auto& [name, parameter] : stage.parameters()) {
      const bool listed = std::any_of(all.begin(), all.end(),
                                      [&own = parameter](const auto& other) { return other.second.is_same(own); });
      if (!listed) all.emplace_back(name, parameter);
    }
  }
  return all;
}

const std::vector<Stage>& Pipeline::stages() const { return implementation_->stages_; }
bool Pipeline::has_first_stage() const { return stages().front().index().value == 0; }
bool Pipeline::has_last_stage() const { return stages().back().index().value + 1 == schedule().stages(); }
std::uint64_t Pipeline::steps() const { return implementation_->steps_; }
void Pipeline::set_steps(std::uint64_t steps) { implementation_->steps_ = steps; }
const Schedule& Pipeline::schedule() const { return implementation_->schedule_; }

void Pipeline::on(ActionKind kind, std::function<void(const ActionContext&)> handler) {
  implementation_->executor_->handlers[static_cast<std::size_t>(kind)] = std::move(handler);
}

void Pipeline::record_timeline(bool record) { implementation_->executor_->record = record; }
const Timeline& Pipeline::timeline() const { return implementation_->executor_->timeline; }

std::vector<Timeline> Pipeline::collect_timelines(RankId to) const {
  static_assert(std::is_trivially_copyable_v<Span>);
  const Timeline& own = timeline();
  std::string bytes(own.size() * sizeof(Span), '\0');
  if (!own.empty()) std::memcpy(bytes.data(), own.data(), bytes.size());
  std::vector<Timeline> all;
  for (const Message& message : implementation_->world_.pipeline().collect({{}, std::move(bytes)}, to.value)) {
    Timeline& timeline_of_rank = all.emplace_back(message.header.size() / sizeof(Span));
    if (!timeline_of_rank.empty()) {
      std::memcpy(timeline_of_rank.data(), message.header.data(), message.header.size());
    }
  }
  return all;
}

}  // namespace stagecraft

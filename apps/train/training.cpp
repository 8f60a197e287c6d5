#include "training.h"

#include <unistd.h>

#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>

#include "batches.h"
#include "evaluation.h"
#include "metrics.h"
#include "model_check.h"
#include "objective.h"
#include "optimizer.h"
#include "position.h"
#include "progress.h"
#include "row_order.h"
#include "saves.h"
#include "stagecraft/automatic/automatic.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/core/text.h"
#include "stagecraft/runtime/split.h"
#include "stagecraft/runtime/together.h"
#include "stagecraft/training/fast_step.h"
#include "stagecraft/watch/live_run.h"

namespace stagecraft::train {
namespace {

/// Checks before training that the output files can be written.
void check_places(const Options& options) {
  Faults faults;
  for (const auto& [option, file] : {std::pair("--save", options.save),
                                     {"--save-weights", options.save_weights},
                                     {"--save-program", options.save_program},
                                     {"--losses", options.losses},
                                     {"--metrics", options.metrics}}) {
    if (file.empty()) continue;
    const std::filesystem::path folder = std::filesystem::absolute(file).parent_path();
    if (!std::filesystem::is_directory(folder)) {
      faults.add("'" + file + "' cannot be written, for there is no folder '" + folder.string() +
                 "': make it, or choose another " + option);
    } else if (::access(folder.c_str(), W_OK) != 0) {
      faults.add("'" + file + "' cannot be written, for the folder '" + folder.string() +
                 "' may not be written to: choose another " + option);
    }
  }
  if (!faults.empty()) throw InvalidArgument(faults.text());
}

Shard shard_of(const std::string& word) {
  if (word == "optimizer") return Shard::kOptimizer;
  if (word == "gradients") return Shard::kGradients;
  return word == "parameters" ? Shard::kParameters : Shard::kNone;
}

Recompute recompute_of(const std::string& word) {
  if (word == "none") return {};
  return word == "stage" ? Recompute::stage() : Recompute::every(std::stoll(word));
}

std::optional<at::ScalarType> type_of(const std::string& word) {
  if (word == "bfloat16") return at::kBFloat16;
  if (word == "float16") return at::kHalf;
  return word == "float32" ? std::optional(at::kFloat) : std::nullopt;
}

Precision precision_of(const Options& options) {
  constexpr std::string_view kAutocast = "autocast-";
  Precision precision;
  if (options.precision.starts_with(kAutocast)) {
    precision.autocast = type_of(options.precision.substr(kAutocast.size()));
  } else if (options.precision != "float32") {
    precision.compute = type_of(options.precision);
  }
  precision.reduce = type_of(options.reduce_type);
  return precision;
}

GraphChoice graph_of(const std::string& word) { return word == "auto" ? GraphChoice("auto") : word == "on"; }

PipelineOptions pipeline_options(const Options& options, const Objective& objective,
                                 std::map<std::string, Split> keyword_splits) {
  PipelineOptions how{.schedule = options.schedule,
                      .stages_per_rank = options.stages_per_rank,
                      .microbatches = options.microbatches,
                      .loss = objective.function(),
                      .loss_weight = objective.microbatch_weight(),
                      .keyword_splits = std::move(keyword_splits),
                      .target_split = objective.split(),
                      .broadcast_loss = true,
                      .seed = options.seed,
                      .shard = shard_of(options.shard),
                      .freeze = options.freeze,
                      .precision = precision_of(options),
                      .accumulate = options.accumulate,
                      .recompute = recompute_of(options.recompute),
                      .graph = graph_of(options.graph)};
  if (!options.passes.empty()) how.passes = options.passes;
  if (options.bucket_bytes > 0) how.bucket_bytes = options.bucket_bytes;
  return how;
}

/// Throws InvalidArgument unless the model takes microbatches of as many rows as it will get.
void check_rows(const Options& options, const Pipe& pipe, const WantedData& wanted) {
  if (options.batch < options.microbatches) {
    throw InvalidArgument("a batch of " + std::to_string(options.batch) + " rows cannot be cut into " +
                          std::to_string(options.microbatches) +
                          " microbatches: give a larger --batch or fewer --microbatches");
  }
  const std::vector<std::int64_t> sizes = even_sizes(options.batch, options.microbatches);
  const auto range = pipe.program().ranges.find(wanted.symbol);
  const bool is_static = wanted.static_rows.has_value();
  const std::optional<std::int64_t> least = is_static                              ? wanted.static_rows
                                            : range == pipe.program().ranges.end() ? std::nullopt
                                                                                   : range->second.least;
  const std::optional<std::int64_t> most = is_static                              ? wanted.static_rows
                                           : range == pipe.program().ranges.end() ? std::nullopt
                                                                                  : range->second.most;
  const std::int64_t smallest = sizes.back();
  const std::int64_t largest = sizes.front();
  if ((!least || smallest >= *least) && (!most || largest <= *most)) return;
  const std::string own =
      smallest == largest ? std::to_string(largest) : std::to_string(smallest) + " to " + std::to_string(largest);
  std::string rule = "at least " + std::to_string(least.value_or(0));
  if (is_static) rule = "exactly " + std::to_string(*least);
  if (!is_static && most && largest > *most) rule = "at most " + std::to_string(*most);
  throw InvalidArgument("the model takes microbatches of " + rule + " rows, and " + std::to_string(options.batch) +
                        " rows in " + std::to_string(options.microbatches) + " microbatches are " + own + " each: " +
                        (is_static ? "give --batch " + std::to_string(*least * options.microbatches) +
                                         ", or export it with a dynamic batch (torch.export.Dim)"
                                   : "give another --batch or --microbatches, or export it for a wider range"));
}

/// The rows to train on and those to evaluate on, and where they come from.
class Splits {
 public:
  Splits(const Options& options, const Pipe& pipe, at::Device device) {
    Faults faults;
    wanted = WantedData::of(pipe, options, faults);
    if (!faults.empty()) throw InvalidArgument(faults.text());
    check_rows(options, pipe, wanted);
    const auto open = [&](const std::vector<std::string>& paths, const std::vector<std::string>& targets,
                          const char* targets_option) {
      return Batches(pipe, wanted, open_data({paths, targets, targets_option}, options, wanted), device);
    };
    training.emplace(open(options.data, options.targets, "--targets"));
    trained_rows = training->data().rows();
    if (options.eval_share > 0) {
      evaluated_rows.count = static_cast<std::int64_t>(options.eval_share * static_cast<double>(trained_rows));
      trained_rows -= evaluated_rows.count;
      evaluated_rows.first = trained_rows;
      evaluation = training;
    } else if (options.evaluates()) {
      evaluation.emplace(open(options.eval_data, options.eval_targets, "--eval-targets"));
      evaluated_rows.count = evaluation->data().rows();
    }
    require(options, trained_rows, options.data.front(), "to train on");
    if (options.evaluates()) {
      require(options, evaluated_rows.count, (options.eval_share > 0 ? options.data : options.eval_data).front(),
              "to evaluate on");
    }
  }

  WantedData wanted;
  std::optional<Batches> training;
  std::int64_t trained_rows = 0;
  std::optional<Batches> evaluation;
  RowRange evaluated_rows;

 private:
  static void require(const Options& options, std::int64_t rows, const std::string& path, const char* what) {
    const std::int64_t wanted = options.batch * options.replicas;
    if (rows >= wanted) return;
    throw FileError(path, "there are " + std::to_string(rows) + " rows, fewer than the " + std::to_string(wanted) +
                              " of one batch, " + what + ": give more data, or a smaller --batch" +
                              (options.eval_share > 0 ? ", or another --eval-share" : ""));
  }
};

/// The state of a run on one rank.
class Run {
 public:
  Run(World& world, const Options& options, const Pipe& pipe)
      : world_(world),
        options_(options),
        splits_(options, pipe, world.device()),
        order_(splits_.trained_rows, !options.in_order, options.seed),
        objective_(options, pipe, splits_.wanted, splits_.training->data(), world.device()),
        pipeline_(world, pipe, pipeline_options(options, objective_, splits_.wanted.splits(pipe))),
        optimizer_(make_optimizer(world, pipeline_, options)),
        rate_(make_learning_rate(options)),
        saves_(world, options),
        metrics_(world, pipeline_, options),
        progress_(options, world.world_rank().value == 0) {
    pipeline_.attach(*optimizer_);
    if (splits_.evaluation) evaluation_.emplace(options, *splits_.evaluation, splits_.evaluated_rows, objective_);
    check_targets(pipe);
    const std::string warning = check_model(options, pipe, objective_);
    if (!warning.empty()) progress_.say("warning: " + warning);
  }

  void run(const Pipe& pipe) {
    begin(pipe);
    bool saved = true;
    bool evaluated = false;
    while (step_ < options_.steps) {
      StepFacts facts = update();
      evaluated = evaluation_ && (step_ == options_.steps || is_due(options_.eval_every));
      if (evaluated) facts.eval_loss = evaluation_->run(world_, pipeline_);
      metrics_.end_step(facts);
      if (live_) live_->end_step(step_, facts.loss, {.rows = facts.rows_per_second, .tokens = facts.tokens_per_second});
      progress_.step(step_, facts.loss, facts.eval_loss);
      saved = is_due(options_.save_every) && saves_.are_wanted();
      if (saved) save();
    }
    if (evaluation_ && !evaluated) {  // nothing was left to train
      progress_.say("step " + std::to_string(step_) + "  eval loss " +
                    std::to_string(evaluation_->run(world_, pipeline_)));
    }
    if (!saved && saves_.are_wanted()) save();
    saves_.finish();
    if (!options_.save_weights.empty()) {
      save_checkpoint(world_, pipeline_, options_.save_weights);
      progress_.say("weights in " + options_.save_weights);
    }
    if (!options_.save_program.empty()) {
      pipe.save(options_.save_program, pipeline_);
      progress_.say("the trained program in " + options_.save_program);
    }
  }

 private:
  [[nodiscard]] bool is_due(std::int64_t every) const { return every > 0 && step_ % every == 0; }

  /// Looks at the targets before the first step. All ranks throw what one of them finds.
  void check_targets(const Pipe& pipe) {
    std::string fault;
    if (world_.world_rank().value == 0) {
      try {
        if (!options_.eval_data.empty())
          Objective(options_, pipe, splits_.wanted, splits_.evaluation->data(), world_.device());
        objective_.check_classes(splits_.training->data());
        if (!options_.eval_data.empty()) objective_.check_classes(splits_.evaluation->data());
      } catch (const FileError& error) {
        fault = error.what();
      } catch (const InvalidArgument& error) {
        fault = error.what();
      }
    }
    together(world_, [&] { fault = world_.everyone().broadcast({{}, fault}, 0).header; });
    if (!fault.empty()) throw InvalidArgument(fault);
  }

  void begin(const Pipe& pipe) {
    position_.rows_per_epoch = order_.rows_per_epoch();
    position_.order = order_.text();
    if (saves_.are_wanted() && world_.world_rank().value == 0) {
      position_.data = splits_.training->data().fingerprint();
    }
    const auto saved = options_.resume ? saves_.found() : std::nullopt;
    const Beginning beginning = beginning_of(world_, options_, saved, position_);
    if (beginning.from) resume(*beginning.from, beginning.rows_taken);
    progress_.begin(step_);
    metrics_.begin(step_);
    if (options_.page > 0) open_page();
    if (beginning.from) {
      progress_.say("going on from step " + std::to_string(step_) + " of " + *beginning.from + ", after " +
                    std::to_string(beginning.rows_taken) + " rows of data");
    }
    if (step_ == 0) progress_.say(pipe.summary());
  }

  void open_page() {
    live_.emplace(world_, pipeline_,
                  LiveRunOptions{.page = {.port = options_.page, .host = options_.page_host},
                                 .title = std::filesystem::path(options_.model).filename().string(),
                                 .steps = options_.steps,
                                 .records_always = metrics_.is_on()});
    if (live_->page() == nullptr) return;
    const bool moved = live_->page()->port() != options_.page;
    progress_.say((moved ? "port " + std::to_string(options_.page) + " is in use; page: " : "page: ") +
                  live_->page()->url());
  }

  void resume(const std::string& path, std::int64_t rows_taken) {
    step_ = load_checkpoint(
        world_, pipeline_, path,
        {.optimizer = optimizer_.get(), .learning_rate = &rate_, .other_learning_rate = options_.new_rate});
    position_.rows_taken = rows_taken;
    // The saved run may have accumulated another number of batches: an update begins at a multiple of the number.
    const auto window = static_cast<std::uint64_t>(options_.accumulate);
    pipeline_.set_steps((pipeline_.steps() + window - 1) / window * window);
  }

  void save() {
    progress_.say(saves_.save(
        pipeline_,
        {.optimizer = optimizer_.get(), .step = step_, .learning_rate = &rate_, .metadata = position_.metadata()}));
  }

  /// One update of the parameters.
  StepFacts update() {
    const double start = seconds_now();
    StepFacts facts;
    rate_.apply(*optimizer_, step_);
    facts.learning_rate = rate_.at(step_);
    const std::vector<StepResult> results = add_up_gradients();
    at::Tensor norm = at::scalar_tensor(std::numeric_limits<double>::infinity());  // of an overflow in float16
    if (pipeline_.unscale_gradients()) {
      norm = limit_gradients();
      fast_step(*optimizer_);
    }
    optimizer_->zero_grad();
    // Only now that all work of the step is issued: reading a number waits for a GPU.
    facts.loss = loss_of(results);
    facts.gradient_norm = norm.item<double>();
    ++step_;
    position_.rows_taken += options_.rows_per_step();
    const double seconds = seconds_now() - start;
    facts.step = step_;
    facts.rows_taken = position_.rows_taken;
    facts.rows_per_second = static_cast<double>(options_.rows_per_step()) / seconds;
    facts.tokens_per_second = facts.rows_per_second * static_cast<double>(splits_.training->data().tokens_per_row());
    return facts;
  }

  /// Runs the batches of one update.
  std::vector<StepResult> add_up_gradients() {
    std::vector<Rows> rows;
    std::vector<Value> targets;
    for (int i = 0; i < options_.accumulate; ++i) {
      const std::int64_t batch = i * world_.replicas() + world_.replica();
      rows.push_back(order_.rows(position_.rows_taken + batch * options_.batch, options_.batch));
      if (pipeline_.has_last_stage()) targets.push_back(objective_.targets(splits_.training->data(), rows.back()));
    }
    const std::vector<double> shares = shares_of(targets);
    const at::Tensor scales = scales_of(targets);
    std::vector<StepResult> results;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      StepOptions inputs;
      if (pipeline_.has_first_stage()) inputs.keywords = splits_.training->inputs(rows[i]);
      if (pipeline_.has_last_stage()) {
        inputs.target = targets[i].map_tensors([&](const at::Tensor& tensor) { return tensor.to(world_.device()); });
        if (options_.accumulate > 1) {
          const at::Tensor share = at::scalar_tensor(shares[i], at::kDouble).to(world_.device());
          inputs.loss_keywords.emplace_back(std::string(kShare), share);
        }
        if (scales.defined()) inputs.loss_keywords.emplace_back(std::string(kScales), scales);
      }
      const double start = seconds_now();
      results.push_back(pipeline_.step({}, inputs));
      metrics_.add_batch(seconds_now() - start);
    }
    return results;
  }

  /// The mean loss of the batches of an update; NaN if nothing counts.
  static double loss_of(const std::vector<StepResult>& results) {
    std::optional<double> loss;
    for (const StepResult& result : results) {
      if (const std::optional<double> own = counted_loss(result)) loss = loss.value_or(0) + *own;
    }
    return loss.value_or(std::numeric_limits<double>::quiet_NaN());
  }

  /// The weight of each accumulated batch in the mean over all of them: gradients are those of one large batch, also
  /// where some targets do not count. On ranks with targets.
  std::vector<double> shares_of(const std::vector<Value>& targets) {
    if (targets.size() < 2) return {1.0};
    std::vector<double> own;
    for (const Value& each : targets) own.push_back(objective_.weight_of(each));
    std::vector<double> shares = weights_of_all(world_.peers(), own);
    const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& share : shares) share = total > 0 ? share / total : 1;
    return shares;
  }

  /// See Objective::scales, over all batches of the update. On ranks with targets.
  at::Tensor scales_of(const std::vector<Value>& targets) {
    if (targets.empty() || !objective_.needs_scales()) return {};
    std::vector<double> counts;
    for (const Value& each : targets) {
      const std::vector<double> own = objective_.counts_of(each);
      counts.resize(own.size());
      for (std::size_t i = 0; i < own.size(); ++i) counts[i] += own[i];
    }
    return Objective::scales(weights_of_all(world_.peers(), counts)).to(world_.device());
  }

  /// Clips the gradients. Returns their norm before, or 0 if nobody needs it.
  at::Tensor limit_gradients() {
    const bool limits_values = options_.clip_value > 0;
    at::Tensor norm = at::scalar_tensor(0.0);
    if (metrics_.is_on() && (limits_values || options_.clip_norm == 0)) norm = pipeline_.gradient_norm();
    if (limits_values) pipeline_.clip_gradient_values(options_.clip_value);
    if (options_.clip_norm > 0) {
      const at::Tensor before = pipeline_.clip_gradient_norm(options_.clip_norm);
      if (metrics_.is_on() && !limits_values) norm = before;
    }
    return norm;
  }

  World& world_;
  const Options& options_;
  Splits splits_;
  RowOrder order_;
  Objective objective_;
  Pipeline pipeline_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  LearningRate rate_;
  Saves saves_;
  std::optional<Evaluation> evaluation_;
  Metrics metrics_;
  Progress progress_;
  std::optional<LiveRun> live_;
  std::int64_t step_ = 0;
  DataPosition position_;
};

}  // namespace

Pipe cut_for(const Options& options, const World& world) {
  CutOptions cut;
  for (const std::string& place : options.at) {
    const bool end = place.ends_with(":end");
    cut.at.push_back({end ? place.substr(0, place.size() - 4) : place,
                      end ? graph::ModuleCut::At::kEnd : graph::ModuleCut::At::kBeginning});
  }
  cut.marked = options.marked;
  const int stages = placement_in(world, options.schedule, options.stages_per_rank).stages();
  if (cut.at.empty() && !cut.marked && stages > 1) cut.stages = stages;
  return Pipe(options.model, cut);
}

void train(World& world, const Options& options) {
  check_places(options);
  if (options.graph == "on" && !world.device().is_cuda()) {
    throw InvalidArgument("--graph on captures steps on a CUDA device, and this run computes on the " +
                          std::string(world.device().is_cpu() ? "CPU" : world.device().str()) +
                          ": give --device cuda where there is one, --graph auto to capture where that is possible, or "
                          "leave it out");
  }
  const Pipe pipe = cut_for(options, world);
  Run(world, options, pipe).run(pipe);
}

}  // namespace stagecraft::train

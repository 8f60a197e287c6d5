#include "training.h"

#include <torch/optim.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "dataset.h"
#include "objective.h"
#include "stagecraft/automatic/automatic.h"
#include "stagecraft/checkpoint/checkpoint.h"
#include "stagecraft/checkpoint/dtypes.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/core/text.h"
#include "stagecraft/runtime/split.h"

namespace stagecraft::train {
namespace {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options, std::vector<at::Tensor> parameters) {
  const auto decay = [&](auto& own) {
    if (options.weight_decay >= 0) own.weight_decay(options.weight_decay);
  };
  if (options.optimizer == "sgd") {
    torch::optim::SGDOptions own(options.rate);
    own.momentum(options.momentum);
    decay(own);
    return std::make_unique<torch::optim::SGD>(std::move(parameters), own);
  }
  if (options.optimizer == "adam") {
    torch::optim::AdamOptions own(options.rate);
    decay(own);
    return std::make_unique<torch::optim::Adam>(std::move(parameters), own);
  }
  torch::optim::AdamWOptions own(options.rate);
  decay(own);
  return std::make_unique<torch::optim::AdamW>(std::move(parameters), own);
}

/// Reads the model's inputs from the data: those cut by rows, and those that are the same in every step.
class Batches {
 public:
  Batches(const Pipe& pipe, const Options& options, at::Device device)
      : options_(options), data_(options.data), device_(device) {
    Faults faults;
    for (const ModelInput& input : pipe.inputs()) {
      if (input.fixed) continue;
      if (!input.tensor || input.name.empty()) {
        faults.add("the input '" + input.name + "' is nested or has no name, so train cannot fill it: use the library");
        continue;
      }
      const bool by_row = input.split.dimension.has_value();
      (by_row ? by_row_ : whole_).push_back(input.name);
      if (const safetensors::Entry* entry = find(input.name, faults)) check(input, *entry, by_row, faults);
    }
    const safetensors::Entry* target = find(options.target, faults);
    if (target != nullptr) count(*target, faults);
    const std::int64_t wanted = options.batch * options.replicas;
    if (rows_ && *rows_ < wanted) {
      faults.add("there are " + std::to_string(*rows_) + " rows, fewer than the " + std::to_string(wanted) +
                 " of one step: give more data, or a smaller --batch");
    }
    if (!faults.empty()) throw FileError(options.data, faults.text());
    if (options.batch < options.microbatches) {
      throw InvalidArgument("a step of " + std::to_string(options.batch) + " rows cannot be cut into " +
                            std::to_string(options.microbatches) +
                            " microbatches: give a larger --batch or fewer --microbatches");
    }
    order_.emplace(*rows_, options.batch, !options.in_order, options.seed);
  }

  [[nodiscard]] ValueDict inputs(std::int64_t batch) {
    ValueDict dict;
    for (const std::string& name : by_row_) dict.emplace_back(name, data_.rows(name, order_->batch(batch)).to(device_));
    for (const std::string& name : whole_) dict.emplace_back(name, data_.whole(name).to(device_));
    return dict;
  }
  /// The targets, on the CPU.
  [[nodiscard]] at::Tensor targets(std::int64_t batch) { return data_.rows(options_.target, order_->batch(batch)); }

 private:
  const safetensors::Entry* find(const std::string& name, Faults& faults) const {
    const safetensors::Entry* entry = data_.find(name);
    if (entry == nullptr) {
      faults.add("there is no tensor '" + name + "': it has " + data_.names() +
                 (name == options_.target ? "; name the targets with --target" : ""));
    }
    return entry;
  }

  void check(const ModelInput& input, const safetensors::Entry& entry, bool by_row, Faults& faults) {
    TensorSpec wanted = *input.tensor;
    if (by_row && !wanted.sizes.empty()) wanted.sizes.front() = TensorSpec::kAny;
    bool fits = dtype_of(entry.dtype) == wanted.dtype && entry.shape.size() == wanted.sizes.size();
    for (std::size_t d = 0; fits && d < entry.shape.size(); ++d) {
      fits = wanted.sizes[d] == TensorSpec::kAny || wanted.sizes[d] == entry.shape[d];
    }
    if (!fits) faults.add("'" + input.name + "' is " + text_of(entry) + ", but the model takes " + wanted.text());
    if (fits && by_row) count(entry, faults);
  }

  /// The entry with LibTorch's name of its type, if LibTorch has the type.
  static std::string text_of(const safetensors::Entry& entry) {
    const std::optional<at::ScalarType> type = dtype_of(entry.dtype);
    return type ? TensorSpec{entry.shape, *type}.text() : entry.text();
  }

  void count(const safetensors::Entry& entry, Faults& faults) {
    const std::int64_t rows = entry.shape.empty() ? 0 : entry.shape.front();
    if (rows_ && *rows_ != rows) {
      faults.add("'" + entry.name + "' has " + std::to_string(rows) + " rows, others have " + std::to_string(*rows_));
    }
    if (!rows_) rows_ = rows;
  }

  const Options& options_;
  Dataset data_;
  at::Device device_;
  std::vector<std::string> by_row_;
  std::vector<std::string> whole_;
  std::optional<std::int64_t> rows_;
  std::optional<RowOrder> order_;
};

/// Checks before training that the output files can be written.
void check_places(const Options& options) {
  Faults faults;
  for (const auto& [option, file] :
       {std::pair("--save", options.save), {"--save-weights", options.save_weights}, {"--losses", options.losses}}) {
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

/// Reports progress, on the rank that has the loss.
class Progress {
 public:
  Progress(const Options& options, bool speaks) : options_(options), speaks_(speaks) {}

  void begin(std::int64_t step) {
    first_ = step;
    start_ = seconds_now();
    if (!speaks_ || options_.losses.empty()) return;
    losses_.open(options_.losses, step == 0 ? std::ios::trunc : std::ios::app);
    if (!losses_) throw FileError(options_.losses, "cannot write it: choose another place for --losses");
    if (step == 0) losses_ << "step,loss\n";
  }

  void step(std::int64_t step, double loss) {
    if (!speaks_) return;
    if (losses_.is_open()) {
      char line[64];
      std::snprintf(line, sizeof line, "%" PRId64 ",%.17g\n", step, loss);
      losses_ << line << std::flush;
    }
    if (step % options_.report != 0 && step != options_.steps && step != first_ + 1) return;
    const double seconds = (seconds_now() - start_) / static_cast<double>(step - first_);
    std::printf("step %" PRId64 "/%" PRId64 "  loss %.4f  %.1f ms\n", step, options_.steps, loss, 1e3 * seconds);
    std::fflush(stdout);
  }

  void say(const std::string& line) const {
    if (!speaks_) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

 private:
  const Options& options_;
  bool speaks_;
  std::int64_t first_ = 0;
  double start_ = 0;
  std::ofstream losses_;
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
  const int stages = placement_in(world, options.schedule).stages();
  if (cut.at.empty() && !cut.marked && stages > 1) cut.stages = stages;
  return Pipe(options.model, cut);
}

void train(World& world, const Options& options) {
  check_places(options);
  const Pipe pipe = cut_for(options, world);
  Batches batches(pipe, options, world.device());
  const auto classes = std::make_shared<Classes>();
  PipelineOptions how{
      .schedule = options.schedule, .microbatches = options.microbatches, .loss = objective(options, classes)};
  if (options.loss == "cross_entropy") how.loss_weight = counted_targets();
  how.seed = options.seed;
  how.broadcast_loss = true;
  Pipeline pipeline(world, pipe, how);
  const auto optimizer = make_optimizer(options, pipeline.parameters());
  Progress progress(options, world.is_last() && world.replica() == 0);

  std::int64_t step = 0;
  if (options.resume && std::filesystem::exists(options.save)) {
    step = load_checkpoint(world, pipeline, options.save, {.optimizer = optimizer.get()});
    progress.say("going on from step " + std::to_string(step) + " of " + options.save);
  }
  const auto save = [&] {
    save_checkpoint(world, pipeline, options.save, {.optimizer = optimizer.get(), .step = step});
    progress.say("saved step " + std::to_string(step) + " in " + options.save);
  };
  progress.begin(step);
  if (step == 0) progress.say(pipe.summary());
  bool saved = true;
  while (step < options.steps) {
    const std::int64_t batch = step * world.replicas() + world.replica();
    StepOptions inputs;
    if (pipeline.has_first_stage()) inputs.keywords = batches.inputs(batch);
    if (pipeline.has_last_stage()) {
      const at::Tensor targets = batches.targets(batch);
      *classes = Classes::of(targets);
      inputs.target = targets.to(world.device());
    }
    const StepResult result = pipeline.step({}, inputs);
    optimizer->step();
    optimizer->zero_grad();
    ++step;
    progress.step(step, result.loss());
    saved = options.save_every > 0 && step % options.save_every == 0 && !options.save.empty();
    if (saved) save();
  }
  if (!saved && !options.save.empty()) save();
  if (!options.save_weights.empty()) {
    save_checkpoint(world, pipeline, options.save_weights);
    progress.say("weights in " + options.save_weights);
  }
}

}  // namespace stagecraft::train

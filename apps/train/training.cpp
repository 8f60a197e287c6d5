#include "training.h"

#include <torch/optim.h>

#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "dataset.h"
#include "objective.h"
#include "stagecraft/checkpoint/checkpoint.h"
#include "stagecraft/core/clock.h"
#include "stagecraft/core/error.h"
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

/// The model's inputs from the data: those with rows, and those that are the same in every step.
class Batches {
 public:
  Batches(const Pipe& pipe, const Options& options) : options_(options), data_(options.data) {
    const graph::Program& program = pipe.program();
    const PipelineOptions splits = pipe.options({});
    std::size_t leaf = 0;
    std::vector<const graph::Input*> leaves;
    for (const graph::Input& input : program.inputs) {
      if (!input.is_loaded()) leaves.push_back(&input);
    }
    const auto add = [&](const std::string& name, const graph::Tree& tree) {
      const graph::Input& input = *leaves[leaf];
      leaf += static_cast<std::size_t>(tree.leaves());
      if (tree.kind != graph::Tree::Kind::kLeaf) {
        faults_.push_back("the input '" + name + "' is nested, which train cannot fill: use the library");
      } else if (input.kind == graph::Input::Kind::kUser) {
        const auto found = splits.keyword_splits.find(name);
        const bool by_row = found == splits.keyword_splits.end() || found->second.dimension.has_value();
        check(name, program.values[static_cast<std::size_t>(input.value)].tensor, by_row);
        (by_row ? by_row_ : whole_).push_back(name);
      }
    };
    for (std::size_t i = 0; i < program.arguments.children.size(); ++i) {
      add(i < program.argument_names.size() ? program.argument_names[i] : std::to_string(i),
          program.arguments.children[i]);
    }
    for (std::size_t i = 0; i < program.keywords.children.size(); ++i)
      add(program.keywords.keys[i], program.keywords.children[i]);
    count_rows();
    refuse_faults();
    order_.emplace(rows_, options.batch, !options.in_order, options.seed);
  }

  [[nodiscard]] ValueDict inputs(std::int64_t batch) {
    ValueDict dict;
    for (const std::string& name : by_row_) dict.emplace_back(name, data_.rows(name, order_->batch(batch)));
    for (const std::string& name : whole_) dict.emplace_back(name, data_.whole(name));
    return dict;
  }
  [[nodiscard]] at::Tensor targets(std::int64_t batch) { return data_.rows(options_.target, order_->batch(batch)); }

 private:
  void check(const std::string& name, const graph::TensorType& type, bool by_row) {
    try {
      const safetensors::Entry& entry = data_.entry(name);
      bool fits = entry.shape.size() == type.sizes.size();
      for (std::size_t d = by_row ? 1 : 0; fits && d < type.sizes.size(); ++d) {
        fits = !type.sizes[d].fixed() || type.sizes[d].value == entry.shape[d];
      }
      fits = fits && scalar_type_of(entry, data_.path()) == expected(type.element);
      if (!fits) {
        faults_.push_back("'" + name + "' is " + entry.text() + ", but the model takes " +
                          std::string(graph::text(type.element)) + " " + graph::text(type.sizes) +
                          (by_row ? " with rows of the data in the first place" : ""));
      }
    } catch (const FileError& error) {
      faults_.emplace_back(error.what());
    }
  }

  static at::ScalarType expected(graph::ElementType type) {
    for (const auto& [name, own] : {std::pair{"bool", at::kBool},
                                    {"uint8", at::kByte},
                                    {"int8", at::kChar},
                                    {"int16", at::kShort},
                                    {"int32", at::kInt},
                                    {"int64", at::kLong},
                                    {"float16", at::kHalf},
                                    {"bfloat16", at::kBFloat16},
                                    {"float32", at::kFloat},
                                    {"float64", at::kDouble}}) {
      if (graph::text(type) == name) return own;
    }
    return at::ScalarType::Undefined;
  }

  void count_rows() {
    rows_ = -1;
    std::vector<std::string> names = by_row_;
    names.push_back(options_.target);
    for (const std::string& name : names) {
      try {
        const safetensors::Entry& entry = data_.entry(name);
        const std::int64_t rows = entry.shape.empty() ? 0 : entry.shape.front();
        if (rows_ >= 0 && rows != rows_)
          faults_.push_back("'" + name + "' has " + std::to_string(rows) + " rows, others have " +
                            std::to_string(rows_));
        if (rows_ < 0) rows_ = rows;
      } catch (const FileError& error) {
        if (name == options_.target) faults_.push_back(std::string(error.what()) + "; name the targets with --target");
      }
    }
    if (rows_ >= 0 && rows_ < options_.batch * options_.replicas) {
      faults_.push_back("there are " + std::to_string(rows_) + " rows, fewer than the " +
                        std::to_string(options_.batch * options_.replicas) +
                        " of one step: give more data, or a smaller --batch");
    }
  }

  void refuse_faults() const {
    if (faults_.empty()) return;
    std::string list;
    for (const std::string& fault : faults_) list += (list.empty() ? "" : "; ") + fault;
    throw FileError(options_.data, list);
  }

  const Options& options_;
  Dataset data_;
  std::vector<std::string> by_row_;
  std::vector<std::string> whole_;
  std::vector<std::string> faults_;
  std::int64_t rows_ = 0;
  std::optional<RowOrder> order_;
};

/// Says how it goes, on the rank that knows.
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
  const Pipe pipe = cut_for(options, world);
  Batches batches(pipe, options);
  PipelineOptions how =
      pipe.options({.schedule = options.schedule, .microbatches = options.microbatches, .loss = objective(options)});
  how.seed = options.seed;
  how.broadcast_loss = true;
  Pipeline pipeline(world, pipe.build_stages(world, options.schedule), how);
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
  if (step == 0) progress.say(pipe.summary());
  progress.begin(step);
  bool saved = true;
  while (step < options.steps) {
    const std::int64_t batch = step * world.replicas() + world.replica();
    StepOptions inputs;
    if (pipeline.has_first_stage()) inputs.keywords = batches.inputs(batch);
    if (pipeline.has_last_stage()) inputs.target = batches.targets(batch);
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

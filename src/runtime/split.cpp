#include "stagecraft/runtime/split.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>

#include "stagecraft/core/balance.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/runtime/together.h"
#include "stagecraft/stage/microbatches.h"
#include "stagecraft/stage/random.h"
#include "stagecraft/stage/stand_ins.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {
namespace {

using Sizes = std::vector<std::int64_t>;

std::string listed(const Sizes& numbers) {
  std::string text;
  for (const std::int64_t value : numbers) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return "[" + text + "]";
}

/// The layers [begin, begin + count), with their names.
torch::nn::Sequential layers_of(const torch::nn::Sequential& model, std::int64_t begin, std::int64_t count) {
  const auto names = model->named_children().keys();
  torch::nn::Sequential part;
  for (std::int64_t i = begin; i < begin + count; ++i) {
    part->push_back(names[static_cast<std::size_t>(i)], *(model->begin() + i));
  }
  return part;
}

/// Describes the whole model and its cuts, for ranks to compare: ranks that split different models would leave out a
/// layer, or train one twice.
std::string origin_of(const torch::nn::Sequential& model, const Sizes& sizes) {
  NamedTensors all = detail::named(model->named_parameters(), "");
  const NamedTensors buffers = detail::named(model->named_buffers(), "");
  all.insert(all.end(), buffers.begin(), buffers.end());
  return "a Sequential of " + std::to_string(model->size()) + " layers cut into " + listed(sizes) + ", " +
         fingerprint_of(all);
}

/// The time when the device has finished all work issued so far.
double seconds_on(at::Device device) {
  if (!device.is_cpu()) current_stream(device).synchronize();
  return seconds_now();
}

/// Seconds of one forward and backward of a layer; its result is stored in `output`.
double time_of(torch::nn::Sequential& layer, const std::vector<at::Tensor>& weights, const at::Tensor& input,
               at::Tensor& output) {
  const at::Tensor leaf = input.detach().set_requires_grad(input.is_floating_point() || input.is_complex());
  const double begin = seconds_on(input.device());
  output = layer->forward(leaf);
  std::vector<at::Tensor> wanted = weights;
  if (leaf.requires_grad()) wanted.push_back(leaf);
  if (output.requires_grad() && !wanted.empty()) {
    torch::autograd::grad({output}, wanted, {at::ones_like(output)}, /*retain_graph=*/std::nullopt,
                          /*create_graph=*/false, /*allow_unused=*/true);
  }
  const double end = seconds_on(input.device());
  output = output.detach();
  return end - begin;
}

Sizes sizes_of_cuts(const Sizes& cuts, std::int64_t layers) {
  Sizes sizes;
  std::int64_t begin = 0;
  for (const std::int64_t cut : cuts) {
    sizes.push_back(cut - begin);
    begin = cut;
  }
  sizes.push_back(layers - begin);
  return sizes;
}

void check_options(const SplitOptions& options, std::int64_t layers, int stages) {
  const int ways =
      (options.layers.empty() ? 0 : 1) + (options.cuts.empty() ? 0 : 1) + (options.balance == Balance::kLayers ? 0 : 1);
  if (ways > 1) {
    throw InvalidArgument("a Sequential is cut in one way: give one of layers, cuts and balance, not " +
                          std::to_string(ways));
  }
  if (layers < stages) {
    throw InvalidArgument("a Sequential of " + std::to_string(layers) + " layers cannot be cut into " +
                          std::to_string(stages) + " stages: use fewer ranks or stages per rank");
  }
}

bool has_sizes(const SplitOptions& options) { return !options.layers.empty() || !options.cuts.empty(); }

/// The sizes given by `layers` or `cuts`.
Sizes given_sizes(const SplitOptions& options, std::int64_t layers, int stages) {
  const bool by_cuts = !options.cuts.empty();
  Sizes sizes = by_cuts ? sizes_of_cuts(options.cuts, layers) : options.layers;
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const bool fits = static_cast<int>(sizes.size()) == stages && total == layers &&
                    std::all_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size > 0; });
  if (fits) return sizes;
  if (by_cuts) {
    throw InvalidArgument("cuts are " + listed(options.cuts) + ", but " + std::to_string(stages) + " stages of " +
                          std::to_string(layers) + " layers need " + std::to_string(stages - 1) +
                          " cuts that ascend between 0 and " + std::to_string(layers));
  }
  throw InvalidArgument("layers are " + listed(options.layers) + ", but there are " + std::to_string(stages) +
                        " stages and " + std::to_string(layers) +
                        " layers: every stage has at least one, and together they have all");
}

/// Measures on the first rank alone: times differ between ranks, but cuts must not.
Sizes measured_sizes(const torch::nn::Sequential& model, World& world, const SplitOptions& options, int stages) {
  Sizes sizes;
  together(world, [&] {
    Message message;
    if (world.world_rank().value == 0) {
      if (!options.sample.defined()) {
        throw InvalidArgument("to balance by time, layers are run: give SplitOptions a sample of the model's input");
      }
      for (const std::int64_t size : balanced_sizes(layer_times(model, options.sample), stages)) {
        message.header += std::to_string(size) + ' ';
      }
    }
    const auto during = world.everyone().during("the costs of the model's layers");
    std::istringstream in(world.everyone().broadcast(std::move(message), 0).header);
    for (std::int64_t size = 0; in >> size;) sizes.push_back(size);
  });
  return sizes;
}

}  // namespace

std::vector<double> layer_bytes(const torch::nn::Sequential& model) {
  std::vector<double> bytes;
  for (const auto& layer : model->children()) {
    double sum = 0;
    for (const at::Tensor& parameter : layer->parameters()) sum += static_cast<double>(parameter.nbytes());
    bytes.push_back(sum);
  }
  return bytes;
}

std::vector<double> layer_times(const torch::nn::Sequential& model, const at::Tensor& sample) {
  constexpr int kTries = 5;  // the first is a warm-up
  std::vector<double> times;
  at::Tensor input = sample;
  const at::AutoGradMode with_gradients(true);
  for (std::size_t i = 0; i < model->size(); ++i) {
    torch::nn::Sequential layer = layers_of(model, static_cast<std::int64_t>(i), 1);
    const StandIns buffers = StandIns::copies_of_buffers(make_stage(0, layer));
    std::vector<at::Tensor> weights = layer->parameters();
    std::erase_if(weights, [](const at::Tensor& weight) { return !weight.requires_grad(); });
    double shortest = std::numeric_limits<double>::infinity();
    at::Tensor output;
    try {
      for (int t = 0; t < kTries; ++t) {
        const RandomScope random(0, StageId(0), MicrobatchId(t));
        shortest = std::min(shortest, time_of(layer, weights, input, output));
      }
    } catch (const c10::Error& error) {
      throw InvalidArgument("layer " + std::to_string(i) + " fails on " + TensorSpec::of(input).text() + ": " +
                            error.what_without_backtrace() + ": give a sample that the model takes");
    }
    times.push_back(shortest);
    input = output;
  }
  return times;
}

namespace {

/// The number of layers of each stage.
Sizes sizes_of(const torch::nn::Sequential& model, World& world, const SplitOptions& options, int stages) {
  const auto layers = static_cast<std::int64_t>(model->size());
  check_options(options, layers, stages);
  if (has_sizes(options)) return given_sizes(options, layers, stages);
  switch (options.balance) {
    case Balance::kLayers:
      break;
    case Balance::kParameters:
      return balanced_sizes(layer_bytes(model), stages);
    case Balance::kTime:
      return measured_sizes(model, world, options, stages);
  }
  return even_sizes(layers, stages);
}

bool is_elsewhere(const torch::nn::Module& module, at::Device device) {
  const auto elsewhere = [&](const at::Tensor& tensor) { return tensor.defined() && tensor.device() != device; };
  const std::vector<at::Tensor> parameters = module.parameters();
  const std::vector<at::Tensor> buffers = module.buffers();
  return std::any_of(parameters.begin(), parameters.end(), elsewhere) ||
         std::any_of(buffers.begin(), buffers.end(), elsewhere);
}

/// `layers(begin, count)`: the layers of one stage.
template <typename Layers>
std::vector<Stage> stages_of_sizes(World& world, const Placement& placement, const Sizes& sizes,
                                   const std::string& origin, const Layers& layers) {
  std::vector<Stage> stages;
  for (const StageId stage : placement.stages_of(world.rank())) {
    const auto at = static_cast<std::ptrdiff_t>(stage.value);
    const std::int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + at, std::int64_t{0});
    torch::nn::Sequential own = layers(begin, sizes[stage.index()]);
    if (is_elsewhere(*own, world.device())) own->to(world.device());
    stages.push_back(make_stage(stage.value, own, {.first_layer = begin, .origin = origin}));
  }
  return stages;
}

}  // namespace

std::vector<std::int64_t> stage_sizes(const torch::nn::Sequential& model, World& world,
                                      const PipelineOptions& options) {
  return sizes_of(model, world, options.split, placement_in(world, options.schedule, options.stages_per_rank).stages());
}

std::vector<Stage> split(const torch::nn::Sequential& model, World& world, const PipelineOptions& options) {
  const Placement placement = placement_in(world, options.schedule, options.stages_per_rank);
  const Sizes sizes = sizes_of(model, world, options.split, placement.stages());
  return stages_of_sizes(world, placement, sizes, origin_of(model, sizes),
                         [&](std::int64_t begin, std::int64_t count) { return layers_of(model, begin, count); });
}

std::vector<Stage> stages_of(const LazyLayers& model, World& world, const PipelineOptions& options) {
  const Placement placement = placement_in(world, options.schedule, options.stages_per_rank);
  const int stages = placement.stages();
  check_options(options.split, model.size(), stages);
  if (options.split.balance != Balance::kLayers) {
    throw InvalidArgument(
        "layers that are made where they are needed cannot be balanced by parameters or time, which would make them "
        "all: give split.layers or split.cuts, or leave the balance at layers");
  }
  const Sizes sizes =
      has_sizes(options.split) ? given_sizes(options.split, model.size(), stages) : even_sizes(model.size(), stages);
  const std::string origin = "LazyLayers of " + std::to_string(model.size()) + " layers cut into " + listed(sizes);
  return stages_of_sizes(world, placement, sizes, origin, [&](std::int64_t begin, std::int64_t count) {
    const RandomScope random(options.seed, StageId(0), MicrobatchId(0));
    torch::nn::Sequential own;
    for (std::int64_t layer = begin; layer < begin + count; ++layer) {
      const RandomLayer of_layer(layer);
      own->push_back(std::to_string(layer), model.make(layer));
    }
    return own;
  });
}

}  // namespace stagecraft

#include "stage_times.h"

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "stagecraft/core/error.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/model/load_operators.h"
#include "stagecraft/model/pipe.h"
#include "stagecraft/runtime/launch.h"
#include "stagecraft/sim/cost_file.h"
#include "stagecraft/sim/profile.h"

namespace stagecraft::train {
namespace {

struct Wanted {
  std::string file;
  std::string model;
  std::vector<int> places;
  std::vector<std::string> load;
};

/// Rows of the smallest table in which the model looks the value up; 1 if it does not.
std::int64_t rows_to_look_up(const graph::Program& program, graph::ValueId value) {
  std::int64_t least = 0;
  graph::for_each_node(program.nodes, [&](const graph::Node& node) {
    const graph::Argument* indices = node.argument("indices");
    const graph::Argument* weight = node.argument("weight");
    if (node.target != "aten::embedding" || indices == nullptr || weight == nullptr) return;
    const auto* looked_up = std::get_if<graph::Use>(indices);
    const auto* table = std::get_if<graph::Use>(weight);
    if (looked_up == nullptr || table == nullptr || looked_up->value != value) return;
    const std::vector<graph::Size>& sizes = program.values[static_cast<std::size_t>(table->value)].tensor.sizes;
    if (!sizes.empty()) least = least == 0 ? sizes.front().value : std::min(least, sizes.front().value);
  });
  return std::max<std::int64_t>(1, least);
}

at::ScalarType torch_type(graph::ElementType element) {
  const auto& known = c10::getStringToDtypeMap();
  const auto found = known.find(std::string(graph::text(element)));
  if (found != known.end()) return found->second;
  throw InvalidArgument("no sample can be made of an input of type " + std::string(graph::text(element)));
}

Value sample(const graph::Program& program, const graph::Input& input, at::Device device) {
  if (input.kind == graph::Input::Kind::kFixed) {
    if (const auto* integer = std::get_if<std::int64_t>(&input.fixed)) return *integer;
    if (const auto* real = std::get_if<double>(&input.fixed)) return *real;
    if (const auto* flag = std::get_if<bool>(&input.fixed)) return *flag;
    if (const auto* text = std::get_if<std::string>(&input.fixed)) return *text;
    return {};
  }
  const graph::ValueInfo& info = program.values[static_cast<std::size_t>(input.value)];
  if (!info.is_tensor()) return info.number.value;
  std::vector<std::int64_t> sizes;
  for (const graph::Size& size : info.tensor.sizes) sizes.push_back(size.value);
  const at::TensorOptions options = at::TensorOptions().device(device);
  if (info.tensor.element == graph::ElementType::kBool) return at::ones(sizes, options.dtype(at::kBool));
  if (graph::is_differentiable(info.tensor.element)) {
    return at::randn(sizes, options.dtype(at::kFloat)).to(torch_type(info.tensor.element));
  }
  return at::randint(rows_to_look_up(program, input.value), sizes, options.dtype(torch_type(info.tensor.element)));
}

Value nested_samples(const graph::Tree& tree, const ValueList& leaves, std::size_t& next) {
  if (tree.kind == graph::Tree::Kind::kLeaf) return leaves.at(next++);
  if (tree.kind == graph::Tree::Kind::kList) {
    ValueList list;
    for (const graph::Tree& child : tree.children) list.push_back(nested_samples(child, leaves, next));
    return list;
  }
  ValueDict dict;
  for (std::size_t i = 0; i < tree.children.size(); ++i)
    dict.emplace_back(tree.keys[i], nested_samples(tree.children[i], leaves, next));
  return dict;
}

struct Inputs {
  ValueList arguments;
  ValueDict keywords;
};

Inputs samples(const graph::Program& program, at::Device device) {
  ValueList leaves;
  for (const graph::Input& input : program.inputs) {
    if (!input.is_loaded()) leaves.push_back(sample(program, input, device));
  }
  Inputs inputs;
  std::size_t next = 0;
  inputs.arguments = nested_samples(program.arguments, leaves, next).list();
  inputs.keywords = nested_samples(program.keywords, leaves, next).dict();
  return inputs;
}

/// Any loss will do: it only has to depend on all outputs.
at::Tensor sum_of_outputs(const Value& output, const Value& /*target*/, const ValueDict& /*keywords*/) {
  at::Tensor total;
  output.for_each_tensor([&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point() || !tensor.requires_grad()) return;
    const at::Tensor own = tensor.to(at::kFloat).mean();
    total = total.defined() ? total + own : own;
  });
  if (!total.defined())
    throw InvalidArgument("the model has no output with a gradient: there is no backward to measure");
  return total;
}

/// All stages on one rank, one microbatch a step.
Recording recorded(World& world, const Pipe& pipe, const std::string& schedule) {
  PipelineOptions options = pipe.options({.schedule = schedule, .microbatches = 1, .loss = sum_of_outputs});
  Pipeline pipeline(world, pipe.build_stages(world, schedule), options);
  const Inputs inputs = samples(pipe.program(), world.device());
  StepOptions given;
  given.target = 0.0;  // the loss does not look at it
  given.keywords = inputs.keywords;
  pipeline.record_timeline(true);
  pipeline.step(inputs.arguments, given);
  Recording recording{schedule, {}};
  // For a second, also where a step takes microseconds: what disturbs the machine for a moment is then not the median.
  for (const double begin = seconds_now(); recording.steps.size() < 3 || seconds_now() < begin + 1;) {
    pipeline.step(inputs.arguments, given);
    recording.steps.push_back(pipeline.collect_timelines(RankId(0)));
  }
  return recording;
}

}  // namespace

bool wants_stage_times(int argc, char** argv) { return argc > 1 && std::string_view(argv[1]) == "--stage-times"; }

int print_stage_times(int argc, char** argv) {
  Wanted wanted;
  CLI::App parser("Times of the stages of a cut model", "stagecraft split --measure");
  parser.add_option("--stage-times", wanted.file)->required();
  parser.add_option("--cut-before", wanted.places)->allow_extra_args(false);
  parser.add_option("--model", wanted.model);
  parser.add_option("--load", wanted.load)->allow_extra_args(false);
  try {
    parser.parse(argc, argv);
    for (const std::string& library : wanted.load) load_operators(library);
  } catch (const std::exception& error) {
    std::cerr << "stagecraft: split: " << error.what() << '\n';
    return 2;
  }
  const LaunchOptions where = {
      .ranks = 1, .device_type = at::hasCUDA() ? at::kCUDA : at::kCPU, .name = "stagecraft: split"};
  return launch(argc, argv, where, [&](World& world) {
    const Pipe pipe(wanted.file,
                    {.policy = [&](const graph::Program&) { return wanted.places; }, .model = wanted.model});
    const bool whole = pipe.stages() == 1;
    const std::vector<Recording> recordings = {recorded(world, pipe, whole ? "1F1B" : "Interleaved1F1B"),
                                               recorded(world, pipe, whole ? "ZB-H1" : "InterleavedZeroBubble")};
    std::cout << costs_to_json(profile(recordings).costs);
  });
}

}  // namespace stagecraft::train

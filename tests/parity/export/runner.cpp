// Runs exported programs, whole and cut, and compares outputs, gradients and buffers with those that Python found.
//
//   export_runner JOBS.json    one line of JSON per job goes to standard output
//
// A job: {"name", "model": file, "data": file, "tolerance", "microbatches": [...], "stride": cut at every n-th place
// (1), "cuts": how many random cuts into 3 and 4 stages, "pipelines": [[stages, schedule, ranks], ...] with balanced
// stages, "evaluation": bool, "steps": 1, "operators": [libraries to load]}. The data, saved by
// torch.save: {"arguments": [...], "keywords": {...}, "outputs": [...], "gradients": {...}, "buffers": {...}}. The loss
// is the sum of the sines of all outputs. Other kinds: "train" (losses of some steps), "load" (memory and reading of
// one stage), "draw" (one step, whose outputs and gradients go to a file).

#include <torch/serialize.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "stagecraft/graph/cut.h"
#include "stagecraft/model/pipe.h"
#include "stagecraft/runtime/launch.h"
#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;
using nlohmann::json;

namespace {

c10::IValue read_pickle(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return torch::pickle_load(bytes);
}

sc::Value as_value(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isBool()) return value.toBool();
  if (value.isString()) return value.toStringRef();
  if (value.isList() || value.isTuple()) {
    sc::ValueList list;
    if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) list.push_back(as_value(item));
    } else {
      for (const c10::IValue& item : value.toTupleRef().elements()) list.push_back(as_value(item));
    }
    return list;
  }
  if (value.isGenericDict()) {
    sc::ValueDict dict;
    for (const auto& entry : value.toGenericDict())
      dict.emplace_back(entry.key().toStringRef(), as_value(entry.value()));
    return dict;
  }
  return {};
}

at::DeviceType device_type() {
  const char* name = std::getenv("STAGECRAFT_TEST_DEVICE");
  return name == nullptr ? at::kCPU : at::Device(name).type();
}

sc::Value on(const at::Device& device, const sc::Value& value) {
  if (value.is_tensor()) return value.tensor().to(device);
  if (value.is_list()) {
    sc::ValueList list;
    for (const sc::Value& item : value.list()) list.push_back(on(device, item));
    return list;
  }
  if (value.is_dict()) {
    sc::ValueDict dict;
    for (const auto& [name, item] : value.dict()) dict.emplace_back(name, on(device, item));
    return dict;
  }
  return value;
}

using Tensors = std::map<std::string, at::Tensor>;

struct Data {
  sc::ValueList arguments;
  sc::ValueDict keywords;
  std::vector<at::Tensor> outputs;
  Tensors gradients;
  Tensors buffers;
};

Tensors tensors_in(const sc::Value& dict) {
  Tensors tensors;
  for (const auto& [name, value] : dict.dict()) tensors[name] = value.tensor();
  return tensors;
}

Data read_data(const std::string& path) {
  const auto dict = read_pickle(path).toGenericDict();
  Data data;
  data.arguments = as_value(dict.at("arguments")).list();
  data.keywords = as_value(dict.at("keywords")).dict();
  const sc::Value outputs = as_value(dict.at("outputs"));
  for (const sc::Value& output : outputs.list()) data.outputs.push_back(output.tensor());
  data.gradients = tensors_in(as_value(dict.at("gradients")));
  data.buffers = tensors_in(as_value(dict.at("buffers")));
  return data;
}

struct Outcome {
  std::vector<at::Tensor> outputs;
  Tensors gradients;
  Tensors buffers;
  std::mutex mutex;
};

at::Tensor loss_of(const sc::Value& output, const sc::Value&, const sc::ValueDict&) {
  at::Tensor total;
  output.for_each_tensor([&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point()) return;
    const at::Tensor own = tensor.to(at::promote_types(tensor.scalar_type(), at::kFloat)).sin().sum();
    total = total.defined() ? total + own.to(total.scalar_type()) : own;
  });
  return total;
}

/// Another choice in every run: results must not depend on it.
sc::Recompute next_recompute() {
  static int runs = 0;
  switch (++runs % 4) {
    case 1:
      return sc::Recompute::stage();
    case 2:
      return sc::Recompute::every(1);
    case 3:
      return sc::Recompute::where([](const std::string& name) { return name.ends_with("0"); });
    default:
      return {};
  }
}

void run_pipe(const sc::Pipe& pipe, const Data& data, const std::string& schedule, int ranks, int microbatches,
              bool evaluation, Outcome& outcome, std::uint64_t seed = 0) {
  const sc::Recompute recompute = next_recompute();
  sc::run_ranks({.ranks = ranks, .device_type = device_type()}, [&](sc::World& world) {
    sc::PipelineOptions how = pipe.options(
        {.schedule = schedule, .microbatches = microbatches, .loss = loss_of, .loss_scale = sc::LossScale::kSum});
    how.seed = seed;
    how.recompute = recompute;
    sc::Pipeline pipeline(world, pipe.build_stages(world, schedule), how);
    sc::StepOptions options;
    options.target = 0.0;  // the loss does not look at it
    options.return_outputs = true;
    sc::ValueList arguments;
    if (pipeline.has_first_stage()) {
      options.keywords = on(world.device(), data.keywords).dict();
      arguments = on(world.device(), data.arguments).list();
    }
    const sc::StepResult result = evaluation ? pipeline.eval(arguments, options) : pipeline.step(arguments, options);
    const std::lock_guard lock(outcome.mutex);
    if (pipeline.has_last_stage())
      result.output.for_each_tensor(
          [&](const at::Tensor& tensor) { outcome.outputs.push_back(tensor.detach().cpu()); });
    for (const auto& [name, parameter] : pipeline.named_parameters()) {
      if (parameter.grad().defined()) outcome.gradients[name] = parameter.grad().cpu();
    }
    for (const sc::Stage& stage : pipeline.stages()) {
      for (const auto& [name, buffer] : stage.buffers()) outcome.buffers[name] = buffer.cpu();
    }
  });
}

/// The largest difference, relative where numbers are large; infinite when shapes or types differ.
double difference(const at::Tensor& ours, const at::Tensor& theirs) {
  if (ours.sizes() != theirs.sizes() || ours.scalar_type() != theirs.scalar_type()) return INFINITY;
  if (ours.numel() == 0) return 0;
  const at::Tensor a = ours.to(at::kDouble);
  const at::Tensor b = theirs.to(at::kDouble);
  const at::Tensor same = a == b;  // infinities too
  const double scale = std::max(1.0, at::where(b.isfinite(), b, at::zeros_like(b)).abs().max().item<double>());
  const double worst = at::where(same, at::zeros_like(a), (a - b).abs()).max().item<double>() / scale;
  return std::isnan(worst) ? INFINITY : worst;
}

class Comparison {
 public:
  Comparison(const Data& data, bool evaluation, bool compares_buffers)
      : data_(data), evaluation_(evaluation), compares_buffers_(compares_buffers) {}

  /// The worst difference; its name in `where`.
  double operator()(const Outcome& outcome, std::string& where) const {
    double worst = 0;
    const auto note = [&](double own, const std::string& name) {
      if (own > worst) {
        worst = own;
        where = name;
      }
    };
    if (outcome.outputs.size() != data_.outputs.size()) note(INFINITY, "number of outputs");
    for (std::size_t i = 0; i < std::min(outcome.outputs.size(), data_.outputs.size()); ++i) {
      note(difference(outcome.outputs[i], data_.outputs[i]), "output " + std::to_string(i));
    }
    if (!evaluation_) compare(outcome.gradients, data_.gradients, "gradient of ", note);
    if (compares_buffers_) compare(outcome.buffers, data_.buffers, "buffer ", note);
    return worst;
  }

 private:
  template <typename Note>
  static void compare(const Tensors& ours, const Tensors& theirs, const std::string& what, const Note& note) {
    for (const auto& [name, tensor] : theirs) {
      const auto found = ours.find(name);
      note(found == ours.end() ? INFINITY : difference(found->second, tensor), what + name);
    }
  }

  const Data& data_;
  bool evaluation_;
  bool compares_buffers_;
};

/// Every kind of schedule with this number of stages.
std::vector<std::pair<std::string, int>> schedules_for(int stages, int microbatches) {
  std::vector<std::pair<std::string, int>> all = {{"1F1B", stages},      {"GPipe", stages}, {"ZB-H1", stages},
                                                  {"Eager1F1B", stages}, {"ZB-H2", stages}, {"Interleaved1F1B", 1}};
  if (stages % 2 == 0) {
    for (const char* name : {"InterleavedZeroBubble", "ZBVZeroBubble", "LoopedBFS", "V-Half", "V-Min", "1F1B-V"})
      all.emplace_back(name, stages / 2);
    if (microbatches >= stages) all.emplace_back("DualPipeV", stages / 2);
  }
  return all;
}

class Job {
 public:
  explicit Job(const json& job)
      : job_(job),
        data_(job.contains("train") || job.contains("load") ? Data() : read_data(job.at("data"))),
        evaluation_(job.value("evaluation", false)),
        tolerance_(job.at("tolerance")) {}

  json run() {
    if (job_.contains("train")) return train();
    if (job_.contains("load")) return load();
    if (job_.contains("draw")) return draw();
    const sc::Pipe whole(job_.at("model"));
    for (const int microbatches : job_.at("microbatches")) try_out(whole, "1F1B", 1, microbatches, "whole");
    const auto nodes = static_cast<int>(whole.program().nodes.size());
    std::vector<int> legal;
    for (int place = 1; place < nodes; ++place) {
      if (sc::graph::reason_against(whole.program(), {place}).empty()) legal.push_back(place);
    }
    // A cut before a node that every stage recomputes is the same as the next cut.
    std::vector<int> distinct;
    for (std::size_t i = 0; i < legal.size(); ++i) {
      const bool same = i + 1 < legal.size() && sc::graph::cut(whole.program(), {legal[i]}).stages[0].nodes ==
                                                    sc::graph::cut(whole.program(), {legal[i + 1]}).stages[0].nodes;
      if (!same) distinct.push_back(legal[i]);
    }
    const auto stride = static_cast<std::size_t>(job_.value("stride", 1));
    for (std::size_t i = stride / 2; i < distinct.size(); i += stride) cut({distinct[i]});
    std::mt19937 random(7);
    for (int i = 0; i < job_.value("cuts", 0) && distinct.size() >= 3; ++i) {
      std::vector<int> places = distinct;
      std::shuffle(places.begin(), places.end(), random);
      places.resize(i % 2 == 0 ? 2 : 3);
      std::sort(places.begin(), places.end());
      if (sc::graph::reason_against(whole.program(), places).empty()) cut(places);
    }
    for (const json& pipeline : job_.value("pipelines", json::array())) {
      const sc::Pipe pipe(job_.at("model"), {.stages = pipeline[0].get<int>()});
      for (const int microbatches : job_.at("microbatches")) {
        try_out(pipe, pipeline[1], pipeline[2], microbatches, pipeline[0].dump() + " stages");
      }
    }
    return {{"name", job_.at("name")}, {"runs", runs_},         {"worst", worst_}, {"legal", distinct.size()},
            {"nodes", nodes},          {"failures", failures_}, {"ties", ties_}};
  }

 private:
  json train() {
    const json& how = job_.at("train");
    const sc::Value data = as_value(read_pickle(job_.at("data")));
    const sc::ValueList& batches = data.at("batches").list();
    const sc::ValueList& expected = data.at("losses").list();
    const sc::Pipe pipe(job_.at("model"), {.stages = how.at("stages").get<int>()});
    const std::string schedule = how.at("schedule");
    const std::string wanted = how.at("output");
    const auto loss = [&](const sc::Value& output, const sc::Value& target, const sc::ValueDict&) {
      const at::Tensor& scores = output.is_dict() ? output.at(wanted).tensor() : output.tensor();
      return at::cross_entropy_loss(scores.flatten(0, -2), target.tensor().flatten());
    };
    std::vector<double> losses;
    const sc::LaunchOptions options = {
        .ranks = how.at("ranks"), .threads_per_rank = how.value("threads", 0), .device_type = device_type()};
    sc::run_ranks(options, [&](sc::World& world) {
      sc::Pipeline pipeline(
          world, pipe.build_stages(world, schedule),
          pipe.options({.schedule = schedule, .microbatches = job_.at("microbatches")[0].get<int>(), .loss = loss}));
      torch::optim::AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(how.at("rate").get<double>()));
      for (int step = 0; step < how.at("steps").get<int>(); ++step) {
        const sc::Value& batch = batches[static_cast<std::size_t>(step) % batches.size()];
        sc::StepOptions given;
        given.target = on(world.device(), batch.at("target"));
        if (pipeline.has_first_stage()) given.keywords = on(world.device(), batch.at("keywords")).dict();
        const sc::StepResult result = pipeline.step({}, given);
        optimizer.step();
        optimizer.zero_grad();
        if (pipeline.has_last_stage()) losses.push_back(result.loss());
      }
    });
    for (std::size_t step = 0; step < losses.size(); ++step) {
      const double own = std::abs(losses[step] - expected[step].real());
      worst_ = std::max(worst_, own);
      if (own > tolerance_ || std::isnan(own))
        failures_.push_back("step " + std::to_string(step) + ": loss " + std::to_string(losses[step]) +
                            ", Python's is " + std::to_string(expected[step].real()));
    }
    return {{"name", job_.at("name")}, {"worst", worst_},       {"failures", failures_},
            {"first", losses.front()}, {"last", losses.back()}, {"ties", pipe.cut().ties.size()},
            {"losses", losses}};
  }

  json load() const {
    const sc::Pipe pipe(job_.at("model"), {.stages = job_.at("load").at("stages").get<int>()});
    at::empty({1});  // what LibTorch sets up at first use
    std::ofstream("/proc/self/clear_refs") << "5";
    const std::int64_t memory = number_in("/proc/self/status", "VmHWM:");
    const std::int64_t read = number_in("/proc/self/io", "rchar:");
    const sc::Stage stage = pipe.build_stage(job_.at("load").at("stage"));
    std::int64_t bytes = 0;
    for (const auto& [name, parameter] : stage.parameters()) bytes += static_cast<std::int64_t>(parameter.nbytes());
    return {{"name", job_.at("name")},
            {"failures", json::array()},
            {"bytes", bytes},
            {"peak", 1024 * (number_in("/proc/self/status", "VmHWM:") - memory)},
            {"read", number_in("/proc/self/io", "rchar:") - read}};
  }

  json draw() const {
    const json& how = job_.at("draw");
    const int stages = how.at("stages");
    const sc::Pipe pipe(job_.at("model"), {.stages = stages > 1 ? stages : 0});
    Outcome outcome;
    run_pipe(pipe, data_, how.at("schedule"), how.at("ranks"), job_.at("microbatches")[0], false, outcome,
             how.at("seed").get<std::uint64_t>());
    c10::Dict<std::string, at::Tensor> gradients;
    for (const auto& [name, gradient] : outcome.gradients) gradients.insert(name, gradient);
    c10::impl::GenericDict drawn(c10::StringType::get(), c10::AnyType::get());
    drawn.insert("outputs", c10::List<at::Tensor>(outcome.outputs));
    drawn.insert("gradients", gradients);
    const std::vector<char> bytes = torch::pickle_save(drawn);
    std::ofstream(how.at("into").get<std::string>(), std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return {{"name", job_.at("name")}, {"failures", json::array()}};
  }

  static std::int64_t number_in(const char* path, const std::string& key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(key)) return std::stoll(line.substr(key.size()));
    }
    return 0;
  }

  void cut(const std::vector<int>& places) {
    const sc::Pipe pipe(job_.at("model"), {.policy = [&](const sc::graph::Program&) { return places; }});
    ties_ = std::max(ties_, static_cast<int>(pipe.cut().ties.size()));
    const std::vector<int> counts = job_.at("microbatches");
    const int microbatches = counts[static_cast<std::size_t>(runs_) % counts.size()];
    const auto schedules = schedules_for(pipe.stages(), microbatches);
    const auto& [schedule, ranks] = schedules[static_cast<std::size_t>(runs_) % schedules.size()];
    std::string label = "cut before";
    for (const int place : places) label += " " + pipe.program().nodes[static_cast<std::size_t>(place)].name;
    try_out(pipe, schedule, ranks, microbatches, label);
  }

  void try_out(const sc::Pipe& pipe, const std::string& schedule, int ranks, int microbatches,
               const std::string& label) {
    ++runs_;
    std::string where;
    double worst = INFINITY;
    try {
      Outcome outcome;
      run_pipe(pipe, data_, schedule, ranks, microbatches, evaluation_, outcome);
      worst = Comparison(data_, evaluation_, microbatches == 1)(outcome, where);
    } catch (const std::exception& error) {
      where = error.what();
    }
    if (std::isfinite(worst)) worst_ = std::max(worst_, worst);
    if (worst <= tolerance_) return;
    failures_.push_back(label + ", " + schedule + " on " + std::to_string(ranks) + " ranks, " +
                        std::to_string(microbatches) + " microbatches: " + where +
                        (std::isfinite(worst) ? " differs by " + std::to_string(worst) : ""));
  }

  const json& job_;
  Data data_;
  bool evaluation_;
  double tolerance_;
  int runs_ = 0;
  int ties_ = 0;
  double worst_ = 0;
  std::vector<std::string> failures_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: export_runner JOBS.json\n";
    return 2;
  }
  std::ifstream file(argv[1]);
  const json jobs = json::parse(file);
  for (const json& job : jobs) {
    try {
      for (const std::string library : job.value("operators", json::array())) sc::load_operators(library);
      std::cout << Job(job).run().dump() << std::endl;
    } catch (const std::exception& error) {
      std::cout << json{{"name", job.at("name")}, {"failures", {error.what()}}}.dump() << std::endl;
    }
  }
  return 0;
}

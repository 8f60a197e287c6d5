// Trains a small GPT on the characters of some text, on four ranks as threads (or as many processes as mpirun starts)
// with a zero-bubble schedule. Then runs the same steps on one device and compares the results.
//
//   [mpirun -n N] gpt_demo [--steps N] [--schedule NAME] [--stages-per-rank N] [--ranks N] [--replicas N]
//                          [--device cpu|cuda] [--out FOLDER] TEXT_FILE...
//
// With --schedule auto it finds its schedule by itself. The last steps are written to FOLDER/timeline.json, of which
// `stagecraft profile` makes costs to simulate and plan with.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <random>
#include <sstream>

#include "gpt.h"
#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

struct Options {
  int steps = 40;
  int ranks = 4;
  int replicas = 1;
  int stages_per_rank = 0;  // 0: the schedule's usual number
  int microbatches = 8;     // of all replicas
  std::int64_t rows = 16;
  std::string schedule = "ZB-H1";
  std::string out = ".";
  at::DeviceType device = at::kCPU;
  std::vector<std::string> files;
};

struct Batch {
  torch::Tensor tokens;
  torch::Tensor next;
};

/// Random batches of the text's bytes; each step's batch is the same in every run.
class Text {
 public:
  Text(const std::vector<std::string>& files, const GptConfig& config) : config_(config) {
    std::string text;
    for (const std::string& file : files) {
      std::ifstream in(file, std::ios::binary);
      if (!in) throw sc::InvalidArgument("the text file '" + file + "' cannot be read");
      std::ostringstream all;
      all << in.rdbuf();
      text += all.str();
    }
    if (static_cast<std::int64_t>(text.size()) <= config.context + 1) {
      throw sc::InvalidArgument("the text has " + std::to_string(text.size()) +
                                " characters: give some files with more");
    }
    bytes_ = torch::empty({static_cast<std::int64_t>(text.size())}, torch::kLong);
    for (std::size_t i = 0; i < text.size(); ++i) {
      bytes_[static_cast<std::int64_t>(i)] = static_cast<unsigned char>(text[i]) % config.vocabulary;
    }
  }

  [[nodiscard]] Batch batch(int step, std::int64_t rows, const at::Device& device) const {
    std::mt19937 random(static_cast<unsigned>(step));
    std::uniform_int_distribution<std::int64_t> start(0, bytes_.size(0) - config_.context - 2);
    std::vector<torch::Tensor> tokens, next;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t at = start(random);
      tokens.push_back(bytes_.narrow(0, at, config_.context));
      next.push_back(bytes_.narrow(0, at + 1, config_.context));
    }
    return {torch::stack(tokens).to(device), torch::stack(next).to(device)};
  }

  [[nodiscard]] std::int64_t size() const { return bytes_.size(0); }
  [[nodiscard]] const GptConfig& config() const { return config_; }

 private:
  GptConfig config_;
  torch::Tensor bytes_;
};

std::vector<GptPiece> make_pieces(const GptConfig& config, int pieces) {
  torch::manual_seed(1);
  std::vector<GptPiece> made;
  for (int i = 0; i < pieces; ++i) made.emplace_back(config, i, pieces);
  return made;
}

class Progress {
 public:
  Progress(std::string name, int steps) : name_(std::move(name)), steps_(steps), live_(isatty(STDOUT_FILENO) == 1) {}

  void show(int step, double loss, double tokens_per_second, const std::string& more) {
    constexpr int kBar = 24;
    const int done = kBar * (step + 1) / steps_;
    const std::string bar =
        std::string(static_cast<std::size_t>(done), '#') + std::string(static_cast<std::size_t>(kBar - done), '.');
    const bool last = step + 1 == steps_;
    if (!live_ && !last && step % 10 != 0) return;
    std::printf("%s%s [%s] step %3d/%d  loss %.4f  %6.0f tokens/s%s%s", live_ ? "\r" : "", name_.c_str(), bar.c_str(),
                step + 1, steps_, loss, tokens_per_second, more.c_str(), live_ && !last ? "" : "\n");
    std::fflush(stdout);
  }

 private:
  std::string name_;
  int steps_;
  bool live_;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Trained {
  std::vector<double> losses;
  std::vector<torch::Tensor> weights;
};

constexpr double kLearningRate = 1e-3;

constexpr std::size_t kRecordedSteps = 10;

void write_timelines(const Options& options, const std::deque<sc::StepTimelines>& steps) {
  std::filesystem::create_directories(options.out);
  const std::string svg = options.out + "/timeline.svg", trace = options.out + "/timeline.json";
  std::ofstream svg_file(svg), trace_file(trace);
  sc::write_timeline_svg(svg_file, steps.back(), options.schedule + ", last step");
  sc::write_timeline_trace(trace_file, sc::Recording{options.schedule, {steps.begin(), steps.end()}});
  if (!svg_file || !trace_file) throw sc::Error("the timeline cannot be written to " + options.out);
  std::printf("the last step as it was: %s (picture); the last %zu: %s (Perfetto, stagecraft profile)\n", svg.c_str(),
              steps.size(), trace.c_str());
}

/// The weights of the whole model in the order of the stages, on rank 0 of each replica; empty elsewhere.
std::vector<torch::Tensor> collect_weights(sc::World& world, const Options& options, const sc::Pipeline& pipeline,
                                           const std::vector<GptPiece>& pieces) {
  const sc::Placement placement = sc::placement_in(world, options.schedule, options.stages_per_rank);
  const std::vector<sc::Message> by_rank = world.pipeline().collect({pipeline.parameters(), ""}, 0);
  std::vector<torch::Tensor> weights;
  std::vector<std::size_t> next(by_rank.size(), 0);
  for (std::size_t stage = 0; stage < pieces.size() && !by_rank.empty(); ++stage) {
    const std::size_t rank = placement.rank_of(sc::StageId(stage)).index();
    for (std::size_t i = 0; i < pieces[stage]->parameters().size(); ++i) {
      weights.push_back(by_rank[rank].tensors[next[rank]++].detach().cpu());
    }
  }
  return weights;
}

/// Trains on one rank. Rank 0 of each replica gets the weights of the whole model.
Trained train_pipelined(sc::World& world, const Options& options, const Text& text,
                        const std::vector<GptPiece>& pieces) {
  std::vector<sc::Stage> stages;
  for (const sc::StageId stage : sc::stages_here(world, options.schedule, options.stages_per_rank)) {
    GptPiece piece = pieces[stage.index()];
    piece->to(world.device());
    stages.push_back(sc::make_stage(stage.value, piece));
  }
  const double tokens = static_cast<double>(options.rows * text.config().context);
  Progress progress(std::to_string(world.size()) + " ranks ", options.steps);
  sc::Pipeline pipeline(world, std::move(stages),
                        {.schedule = options.schedule,
                         .microbatches = options.microbatches / world.replicas(),
                         .loss = [](const sc::Value& logits, const sc::Value& next,
                                    const sc::ValueDict&) { return next_token_loss(logits.tensor(), next.tensor()); },
                         .broadcast_loss = true});
  torch::optim::AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(kLearningRate));
  pipeline.record_timeline(true);
  Trained trained;
  std::deque<sc::StepTimelines> steps;
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < options.steps; ++step) {
    const Batch batch = text.batch(step, options.rows, world.device());
    const sc::StepResult result = pipeline.step({world.share_of(batch.tokens)}, {.target = world.share_of(batch.next)});
    optimizer.step();
    optimizer.zero_grad();
    trained.losses.push_back(result.loss());
    sc::StepTimelines timelines = pipeline.collect_timelines(sc::RankId(0));
    if (world.world_rank().value != 0) continue;
    char bubble[32];
    std::snprintf(bubble, sizeof bubble, "  idle %4.1f%%", 100 * sc::summarize(timelines).idle());
    progress.show(step, result.loss(), tokens * (step + 1) / seconds_since(begin), bubble);
    steps.push_back(std::move(timelines));
    if (steps.size() > kRecordedSteps) steps.pop_front();
  }
  trained.weights = collect_weights(world, options, pipeline, pieces);
  if (world.world_rank().value != 0) return trained;
  if (sc::is_auto(options.schedule)) std::printf("%s\n", sc::auto_report(pipeline).text().c_str());
  write_timelines(options, steps);
  return trained;
}

/// Trains on one device with the same microbatches, one after the other, without Stagecraft.
Trained train_on_one_device(const Options& options, const Text& text, const at::Device& device,
                            std::vector<GptPiece> pieces) {
  Trained trained;
  for (auto& piece : pieces) {
    piece->to(device);
    for (const auto& parameter : piece->parameters()) trained.weights.push_back(parameter);
  }
  torch::optim::AdamW optimizer(trained.weights, torch::optim::AdamWOptions(kLearningRate));
  Progress progress("1 device", options.steps);
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < options.steps; ++step) {
    const Batch batch = text.batch(step, options.rows, device);
    const auto tokens = batch.tokens.chunk(options.microbatches), next = batch.next.chunk(options.microbatches);
    double loss = 0;
    for (std::size_t m = 0; m < tokens.size(); ++m) {
      torch::Tensor x = tokens[m];
      for (auto& piece : pieces) x = piece(x);
      const auto own = next_token_loss(x, next[m]);
      (own / options.microbatches).backward();
      loss += own.item<double>() / options.microbatches;
    }
    optimizer.step();
    optimizer.zero_grad();
    trained.losses.push_back(loss);
    progress.show(step, loss,
                  static_cast<double>(options.rows * text.config().context) * (step + 1) / seconds_since(begin), "");
  }
  for (auto& weight : trained.weights) weight = weight.detach().cpu();
  return trained;
}

void compare(const Options& options, const Trained& pipelined, const Trained& single) {
  double loss = 0;
  double weight = 0;
  for (std::size_t i = 0; i < single.losses.size(); ++i) {
    loss = std::max(loss, std::abs(single.losses[i] - pipelined.losses[i]));
  }
  for (std::size_t i = 0; i < single.weights.size(); ++i) {
    weight = std::max(weight, (single.weights[i] - pipelined.weights[i]).abs().max().item<double>());
  }
  const bool equal = loss == 0 && weight == 0;
  std::printf("largest difference to one device over %d steps: loss %g, weights %g%s\n", options.steps, loss, weight,
              equal ? " (the same, bit for bit)" : "");
  // Schedules that add up weight gradients in another order differ in the last bits.
  if (loss > 1e-4 || weight > 1e-2) throw sc::Error("the pipeline does not train as one device does");
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw sc::InvalidArgument(word + " needs a value");
      return argv[++i];
    };
    const auto number = [&] {
      const std::string given = value();
      const int parsed = std::atoi(given.c_str());
      if (parsed < 1) throw sc::InvalidArgument(word + " is a number from 1 on, got '" + given + "'");
      return parsed;
    };
    if (word == "--steps") {
      options.steps = number();
    } else if (word == "--ranks") {
      options.ranks = number();
    } else if (word == "--stages-per-rank") {
      options.stages_per_rank = number();
    } else if (word == "--replicas") {
      options.replicas = number();
    } else if (word == "--schedule") {
      options.schedule = value();
    } else if (word == "--out") {
      options.out = value();
    } else if (word == "--device") {
      options.device = at::Device(value()).type();
    } else if (word.starts_with("--stagecraft-")) {
      continue;  // for the launcher
    } else {
      options.files.push_back(word);
    }
  }
  if (options.files.empty()) {
    throw sc::InvalidArgument(
        "usage: gpt_demo [--steps N] [--schedule NAME] [--stages-per-rank N] [--ranks N] [--replicas N] "
        "[--device cpu|cuda] [--out FOLDER] TEXT_FILE...");
  }
  if (options.microbatches % options.replicas != 0) {
    throw sc::InvalidArgument("--replicas must divide the " + std::to_string(options.microbatches) +
                              " microbatches, got " + std::to_string(options.replicas));
  }
  return options;
}

int demo(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const GptConfig config;
  const Text text(options.files, config);
  // The ranks of a replica that are threads share one set of pieces. One thread makes all sets, because all threads
  // share one random generator.
  std::once_flag once;
  std::vector<std::vector<GptPiece>> pieces;
  const auto program = [&](sc::World& world) {
    const int stages = sc::placement_in(world, options.schedule, options.stages_per_rank).stages();
    std::call_once(once, [&] {
      for (int replica = 0; replica < world.replicas(); ++replica) pieces.push_back(make_pieces(config, stages));
    });
    if (world.world_rank().value == 0) {
      std::int64_t parameters = 0;
      for (auto& piece : pieces[0]) {
        for (const auto& parameter : piece->parameters()) parameters += parameter.numel();
      }
      std::printf("a GPT of %.1f million parameters on %lld characters, %s, %d ranks%s, %d microbatches\n",
                  static_cast<double>(parameters) / 1e6, static_cast<long long>(text.size()), options.schedule.c_str(),
                  world.size(),
                  world.replicas() > 1 ? (" x " + std::to_string(world.replicas()) + " replicas").c_str() : "",
                  options.microbatches);
    }
    const auto& own = pieces[static_cast<std::size_t>(world.replica())];
    const Trained pipelined = train_pipelined(world, options, text, own);
    if (world.world_rank().value != 0) return;
    compare(options, pipelined, train_on_one_device(options, text, world.device(), make_pieces(config, stages)));
  };
  return sc::launch(
      argc, argv,
      {.ranks = options.ranks, .replicas = options.replicas, .threads_per_rank = 1, .device_type = options.device},
      program);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return demo(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt_demo: %s\n", error.what());
    return 1;
  }
}

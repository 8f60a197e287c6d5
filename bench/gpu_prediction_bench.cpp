// How well two recorded schedules predict the step times of others on a GPU, and whether "auto" picks the fastest.
//
//   gpu_prediction_bench [--save=FOLDER] [RANKS...]      1, 2 and 4 unless given
//
// With --save the recordings are written to files, for `stagecraft profile`.
//
// One rank trains a GPT in four stages: schedules differ in what whole and split backwards take. Several ranks are
// threads that share the GPU; for the time of one to be that of a device of its own, their kernels must fit side by
// side: each is as wide as a fraction of the GPU (narrow_kernels.h), what they read fits into its cache, and a stage
// takes several. Kernels are long enough that the device is busy, not the host, whose times are those of whatever else
// runs there. Of every family, two schedules are recorded, with events, and all are predicted from these and measured,
// eagerly, in turns. Prints tables, which also tell how long the recorded steps took.
// The exit code is 1 when a prediction is off by more than 5 %, or "auto" ends more than 5 % above the fastest.

#include <torch/torch.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string_view>

#include "gpu_gpt.h"
#include "narrow_kernels.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/runtime/timeline_message.h"
#include "stagecraft/stagecraft.h"
#include "stagecraft/view/timeline.h"

namespace sc = stagecraft;

namespace {

constexpr double kTolerance = 0.05;
constexpr int kRounds = 9;
constexpr int kMicrobatches = 8;

struct Family {
  int stages_per_rank;
  std::vector<std::string> schedules;  // the first two are recorded
};

std::vector<Family> families_of(int ranks) {
  if (ranks == 1) return {{4, {"Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS"}}};
  return {{1, {"1F1B", "ZB-H1", "GPipe", "ZB-H2"}},
          {2, {"Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS"}},
          {2, {"1F1B-V", "ZBVZeroBubble", "V-Half", "V-Min"}}};
}

/// What one rank trains.
struct Work {
  std::vector<sc::Stage> stages;
  sc::LossFunction loss;
  at::Tensor input, target;
};

Work gpt(const sc::World& world) {
  const bench::Setting setting{.layers = 8,
                               .width = 2048,
                               .microbatches = kMicrobatches,
                               .rows = 4,
                               .length = 1024,
                               .type = at::kBFloat16,
                               .ranks = 1};
  Work work;
  for (int s = 0; s < bench::kStages; ++s) {
    work.stages.push_back(sc::make_stage(s, std::make_shared<bench::Part>(setting, s, world.device())));
  }
  const auto options = torch::TensorOptions(at::kLong).device(world.device());
  work.input = at::randint(bench::kVocabulary, {setting.microbatches * setting.rows, setting.length}, options);
  work.target = at::randint(bench::kVocabulary, work.input.sizes(), options);
  work.loss = bench::loss_of;
  return work;
}

Work narrow(const sc::World& world, const std::vector<sc::StageId>& stages) {
  const std::int64_t rows = 120 / world.size();
  Work work;
  for (const sc::StageId stage : stages) {
    auto layer = std::make_shared<bench::NarrowLayer>(/*passes=*/16 + 4 * (stage.value % 2));  // stages differ
    layer->to(world.device());
    work.stages.push_back(sc::make_stage(stage.value, layer));
  }
  work.input = bench::narrow_input(rows * kMicrobatches, world.device());
  work.target = at::zeros({rows * kMicrobatches}, work.input.options());
  work.loss = [](const at::Tensor& output, const at::Tensor&) { return output.mean(); };
  return work;
}

double timed(sc::World& world, sc::Pipeline& pipeline, const Work& work) {
  world.everyone().barrier();
  const double begin = sc::seconds_now();
  pipeline.step({work.input}, {.target = work.target});
  for (const at::Tensor& parameter : pipeline.parameters()) parameter.mutable_grad().reset();
  torch::cuda::synchronize();
  world.everyone().barrier();
  return sc::seconds_now() - begin;
}

/// Two recorded steps, of which the first is a warm-up. Timelines are gathered afterwards: between two steps that would
/// count as time of the optimizer.
sc::Recording recorded(sc::World& world, sc::Pipeline& pipeline, const Work& work, const std::string& name) {
  std::vector<sc::Timeline> own;
  pipeline.record_timeline(true);
  for (int step = 0; step < 2; ++step) {
    timed(world, pipeline, work);
    own.push_back(pipeline.timeline());
  }
  pipeline.record_timeline(false);
  sc::Recording recording{name, {}};
  for (const sc::Timeline& timeline : own) {
    sc::StepTimelines& all = recording.steps.emplace_back();
    for (const sc::Message& message : world.pipeline().collect(sc::to_message(timeline), 0)) {
      all.push_back(sc::to_timeline(message));
    }
  }
  return recording;
}

void save(const std::vector<sc::Recording>& recordings, int ranks, const std::string& folder) {
  for (std::size_t i = 0; i < recordings.size(); ++i) {
    std::ofstream out(folder + "/" + std::to_string(ranks) + "-" + recordings[i].name + "-" + std::to_string(i) +
                      ".json");
    sc::write_timeline_trace(out, recordings[i]);
  }
}

/// Returns whether all is within the tolerance; on rank 0.
bool run(sc::World& world, const Family& family, const std::string& folder) {
  const std::vector<sc::StageId> here = sc::stages_here(world, family.schedules[0], family.stages_per_rank);
  const Work work = world.size() == 1 ? gpt(world) : narrow(world, here);
  const auto made = [&](const sc::ScheduleChoice& schedule) {
    return std::make_unique<sc::Pipeline>(
        world, work.stages,
        sc::PipelineOptions{.schedule = schedule,
                            .microbatches = kMicrobatches,
                            .loss = work.loss,
                            .automatic = {.time_budget = 2, .memory_limit = INFINITY}});
  };
  std::vector<std::unique_ptr<sc::Pipeline>> pipelines;
  for (const std::string& name : family.schedules) pipelines.push_back(made(name));
  std::vector<sc::Recording> recordings;
  std::vector<std::vector<double>> measured(pipelines.size());
  for (int round = -1; round < kRounds; ++round) {  // the first is a warm-up
    for (std::size_t i = 0; i < pipelines.size(); ++i) {
      sc::Pipeline& pipeline = *pipelines[i];
      timed(world, pipeline, work);  // after another schedule
      const double seconds = timed(world, pipeline, work);
      if (round >= 0) measured[i].push_back(seconds);
      if (i >= 2) continue;
      sc::Recording recording = recorded(world, pipeline, work, family.schedules[i]);
      if (round >= 0) recordings.push_back(std::move(recording));
    }
  }
  auto automatic = made("auto");
  int steps = 0;
  while (sc::auto_report(*automatic).phase != sc::AutoReport::Phase::kDecided && ++steps < 200) {
    timed(world, *automatic, work);
  }
  std::vector<double> chosen;
  for (int i = 0; i < kRounds; ++i) chosen.push_back(timed(world, *automatic, work));
  if (!world.is_first()) return true;

  if (!folder.empty()) save(recordings, world.size(), folder);
  const sc::Profile profile = sc::profile(recordings);
  bool is_good = true;
  double fastest = INFINITY;
  std::printf("\n%d ranks, %d stages each\n%-24s%14s%14s%14s%10s\n", world.size(), family.stages_per_rank, "schedule",
              "recorded ms", "predicted ms", "measured ms", "ratio");
  for (std::size_t i = 0; i < pipelines.size(); ++i) {
    const double expected = sc::predicted_period(profile, pipelines[i]->schedule());
    const double seconds = sc::median(measured[i]);
    fastest = std::min(fastest, seconds);
    const bool is_near = std::abs(seconds / expected - 1) <= kTolerance;
    is_good &= is_near;
    std::vector<double> periods;
    for (const sc::ProfiledRun& one : profile.runs) {
      if (one.name == family.schedules[i]) periods.push_back(one.measured_period);
    }
    std::array<char, 16> recorded{};
    if (!periods.empty()) std::snprintf(recorded.data(), recorded.size(), "%.3f", 1e3 * sc::median(periods));
    std::printf("%-24s%14s%14.3f%14.3f%10.3f%s\n", family.schedules[i].c_str(), recorded.data(), 1e3 * expected,
                1e3 * seconds, seconds / expected, is_near ? "" : "   MISSED");
  }
  const double own = sc::median(chosen);
  const bool is_fast = own <= (1 + kTolerance) * fastest;
  std::printf("auto: %s\n%-24s%14s%14s%14.3f%10.3f of the fastest%s\n", sc::auto_report(*automatic).text().c_str(),
              automatic->schedule().name.c_str(), "", "", 1e3 * own, own / fastest, is_fast ? "" : "   MISSED");
  std::fflush(stdout);
  return is_good && is_fast;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> sizes;
  std::string folder;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--save=")) folder = argument.substr(7);
    if (!argument.starts_with("-")) sizes.push_back(std::atoi(argv[i]));
  }
  if (sizes.empty()) sizes = {1, 2, 4};
  std::atomic<bool> is_good = true;
  for (const int ranks : sizes) {
    const int code = sc::launch(argc, argv, {.ranks = ranks, .device_type = at::kCUDA}, [&](sc::World& world) {
      for (const Family& family : families_of(ranks)) {
        if (!run(world, family, folder)) is_good = false;
      }
    });
    if (code != 0) return code;
  }
  return is_good ? 0 : 1;
}

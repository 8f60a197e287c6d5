// How well costs of a recorded run predict the step time of other schedules: the GPT of the demo on two ranks (threads,
// or two processes under mpirun), several schedules per placement. Of each placement two schedules are recorded, one
// with whole backwards and one with split ones; all are predicted from these, and measured. Prints one line of JSON.
//
//   [mpirun -n RANKS] fidelity_bench [RANKS [ROUNDS [MICROBATCHES [ROWS [WIDTH]]]]]
//
// Schedules take turns, a few steps each, so that what disturbs the machine for a while disturbs all of them alike;
// steps that are measured are not recorded, and the other way round. A step is one turn of a training loop: batch,
// step, optimizer.

#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <mutex>

#include "../examples/gpt/gpt.h"
#include "stagecraft/core/clock.h"
#include "stagecraft/core/median.h"
#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr int kStepsInTurn = 4;  // the first one finds the caches of another schedule

struct Settings {
  int ranks = 2;
  int rounds = 8;
  int microbatches = 8;
  std::int64_t rows = 16;
  GptConfig model;
};

struct Family {
  int stages_per_rank;
  std::vector<std::string> recorded;
  std::vector<std::string> predicted;
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {1, {"1F1B", "ZB-H1"}, {"GPipe", "ZB-H2"}},
      {2, {"Interleaved1F1B", "InterleavedZeroBubble"}, {"LoopedBFS"}},
      {2, {"1F1B-V", "ZBVZeroBubble"}, {"V-Half", "V-Min"}},
  };
  return all;
}

struct Entry {
  std::string name;
  std::unique_ptr<sc::Pipeline> pipeline;
  std::vector<sc::Recording> recordings;  // on rank 0
  std::vector<double> seconds;            // of measured steps
  std::vector<double> calls;              // of Pipeline::step alone
};

at::Tensor loss_of(const sc::Value& logits, const sc::Value& next, const sc::ValueDict&) {
  return next_token_loss(logits.tensor(), next.tensor());
}

/// All schedules of one family over the same stages.
class Course {
 public:
  Course(sc::World& world, const Settings& settings, const Family& family) : world_(world), settings_(settings) {
    std::vector<std::string> names = family.recorded;
    names.insert(names.end(), family.predicted.begin(), family.predicted.end());
    const sc::Placement placement = sc::placement_in(world, names[0], family.stages_per_rank);
    std::vector<sc::Stage> stages;
    {
      static std::mutex mutex;  // one random generator for all threads
      const std::lock_guard lock(mutex);
      for (const sc::StageId stage : placement.stages_of(world.rank())) {
        stages.push_back(sc::make_stage(stage.value, GptPiece(settings.model, stage.value, placement.stages())));
      }
    }
    for (const std::string& name : names) {
      auto pipeline = std::make_unique<sc::Pipeline>(
          world, stages, sc::PipelineOptions{.schedule = name, .microbatches = settings.microbatches, .loss = loss_of});
      entries_.push_back({name, std::move(pipeline), {}, {}, {}});
    }
    optimizer_ = std::make_unique<torch::optim::AdamW>(entries_[0].pipeline->parameters(), 1e-4);
    recorded_ = family.recorded.size();
    tokens_ = torch::randint(settings.model.vocabulary, {settings.rows, settings.model.context}, torch::kLong);
    next_ = torch::randint(settings.model.vocabulary, {settings.rows, settings.model.context}, torch::kLong);
  }

  void turn(Entry& entry, bool record) {
    entry.pipeline->record_timeline(record);
    sc::Recording recording{entry.name, {}};
    double before = 0;
    world_.everyone().barrier();
    for (int step = 0; step < kStepsInTurn; ++step) {
      const double begin = sc::seconds_now();
      entry.pipeline->step({tokens_}, {.target = next_});
      const double end = sc::seconds_now();
      optimizer_->step();
      optimizer_->zero_grad();
      if (record) {
        steps_.push_back(entry.pipeline->timeline());
      } else if (step > 0) {
        entry.seconds.push_back(end - before);
        entry.calls.push_back(end - begin);
      }
      before = end;
    }
    if (!record) return;
    for (const sc::Timeline& own : steps_) {
      recording.steps.push_back(gathered(own));
    }
    steps_.clear();
    if (world_.rank().value == 0) entry.recordings.push_back(std::move(recording));
  }

  void run() {
    for (int round = 0; round < 2 * (settings_.rounds + 1); ++round) {
      for (std::size_t i = 0; i < entries_.size(); ++i) {
        const bool record = round % 2 == 0;
        if (record && i >= recorded_) continue;
        turn(entries_[i], record);
        if (round < 2) {  // everything allocates what it needs
          entries_[i].seconds.clear();
          entries_[i].calls.clear();
          entries_[i].recordings.clear();
        }
      }
    }
  }

  void report(std::ostream& out) {
    std::vector<sc::Recording> all;
    for (Entry& entry : entries_) {
      for (sc::Recording& recording : entry.recordings) all.push_back(std::move(recording));
    }
    const sc::Profile profile = sc::profile(all);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      const double predicted = sc::simulate(entry.pipeline->schedule(), profile.costs).makespan;
      const double measured = sc::median(entry.seconds);
      out << (i > 0 ? ", " : "") << "{\"schedule\": \"" << entry.name
          << "\", \"recorded\": " << (i < recorded_ ? "true" : "false") << ", \"predicted\": " << predicted
          << ", \"measured\": " << measured << "}";
    }
  }

 private:
  sc::StepTimelines gathered(const sc::Timeline& own) {
    std::string bytes(own.size() * sizeof(sc::Span), '\0');
    std::memcpy(bytes.data(), own.data(), bytes.size());
    sc::StepTimelines all;
    for (const sc::Message& message : world_.pipeline().collect({{}, std::move(bytes)}, 0)) {
      sc::Timeline& timeline = all.emplace_back(message.header.size() / sizeof(sc::Span));
      std::memcpy(static_cast<void*>(timeline.data()), message.header.data(), message.header.size());
    }
    return all;
  }

  sc::World& world_;
  const Settings& settings_;
  std::vector<Entry> entries_;
  std::size_t recorded_ = 0;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  at::Tensor tokens_, next_;
  sc::StepTimelines steps_;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  std::vector<long long> numbers;
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] != '-') numbers.push_back(std::atoll(argv[i]));
  }
  const auto argument = [&](std::size_t i, auto fallback) {
    return numbers.size() > i ? static_cast<decltype(fallback)>(numbers[i]) : fallback;
  };
  settings.ranks = argument(0, settings.ranks);
  settings.rounds = argument(1, settings.rounds);
  settings.microbatches = argument(2, settings.microbatches);
  settings.rows = argument(3, settings.rows);
  settings.model.width = argument(4, settings.model.width);
  return sc::launch(argc, argv, {.ranks = settings.ranks, .threads_per_rank = 1}, [&](sc::World& world) {
    for (const Family& family : families()) {
      Course course(world, settings, family);
      course.run();
      if (world.rank().value == 0) {
        std::cout << (&family == &families()[0] ? "[" : ", ");
        course.report(std::cout);
        if (&family == &families().back()) std::cout << "]" << std::endl;
      }
      world.everyone().barrier();
    }
  });
}

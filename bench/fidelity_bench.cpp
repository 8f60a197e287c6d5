// Measures how well costs from recorded runs predict the step time of other schedules. Runs the demo's GPT on two ranks
// (threads, or processes under mpirun) with several schedules for each of three placements. For each placement, two
// schedules are recorded, one with whole and one with split backwards; all schedules are predicted from these and
// measured. Prints one line of JSON.
//
//   [mpirun -n RANKS] fidelity_bench [--placement=linear|loop|v] [RANKS [ROUNDS [MICROBATCHES [ROWS [WIDTH]]]]]
//
// In a round every schedule gets a measured turn, and the recorded ones a recorded turn too, so that a slow phase of
// the machine affects both alike. Rounds in which other programs used the processors do not count. Rounds are run until
// the standard error of every median is below one percent, at most ROUNDS. A step is one iteration of a training loop:
// batch, step, optimizer.

#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>

#include "../examples/gpt/gpt.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr int kStepsInTurn = 2;  // the first is a warm-up, after another schedule
constexpr std::size_t kLeastRounds = 15;
constexpr double kPrecise = 0.01;  // largest standard error of a median, relative to it
constexpr double kQuiet = 0.05;    // most processor time of other programs, in processors

constexpr std::string_view kPlacement = "--placement=";

struct Settings {
  int ranks = 2;
  int rounds = 150;
  int microbatches = 8;
  std::int64_t rows = 16;
  GptConfig model;
  std::string placement;  // empty: all
};

struct Family {
  std::string placement;
  int stages_per_rank;
  std::vector<std::string> recorded;
  std::vector<std::string> predicted;
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"linear", 1, {"1F1B", "ZB-H1"}, {"GPipe", "ZB-H2"}},
      {"loop", 2, {"Interleaved1F1B", "InterleavedZeroBubble"}, {"LoopedBFS"}},
      {"v", 2, {"1F1B-V", "ZBVZeroBubble"}, {"V-Half", "V-Min"}},
  };
  return all;
}

struct Entry {
  std::string name;
  std::unique_ptr<sc::Pipeline> pipeline;
};

/// One turn of every schedule of a placement, on rank 0.
struct Turns {
  std::vector<sc::Recording> recordings;
  std::vector<double> measured;  // seconds per step, by schedule
};

/// Standard error of the median, from order statistics: half of the range that holds it with a probability of 2/3.
double error_of_median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double middle = static_cast<double>(values.size() - 1) / 2;
  const double reach = std::sqrt(static_cast<double>(values.size())) / 2;
  const auto low = static_cast<std::size_t>(std::max(0.0, std::floor(middle - reach)));
  const auto high = std::min(values.size() - 1, static_cast<std::size_t>(std::ceil(middle + reach)));
  return (values[high] - values[low]) / 2;
}

at::Tensor loss_of(const sc::Value& logits, const sc::Value& next, const sc::ValueDict&) {
  return next_token_loss(logits.tensor(), next.tensor());
}

/// Measures the processor time of other programs.
class Others {
 public:
  explicit Others(sc::World& world) : world_(world) {}

  void begin() {
    wall_ = sc::seconds_now();
    busy_ = busy_of_machine();
    own_ = busy_of_program();
  }
  /// Processor time of other programs since `begin`, in processors. The same on all ranks, which call both functions
  /// together.
  double end() {
    const double own = busy_of_program() - own_;
    const double others = busy_of_machine() - busy_ - own;
    const double part = std::max(0.0, others / (sc::seconds_now() - wall_));
    return std::stod(world_.everyone().broadcast({{}, std::to_string(part)}, 0).header);
  }

 private:
  static double busy_of_machine() {
    std::ifstream stat("/proc/stat");
    std::string word;
    double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, hard = 0, soft = 0, stolen = 0;
    stat >> word >> user >> nice >> system >> idle >> waiting >> hard >> soft >> stolen;
    return (user + nice + system + hard + soft + stolen) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }

  /// Processor seconds of all ranks; ranks that are threads of one process are counted once.
  double busy_of_program() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    std::ostringstream own;
    own << getpid() << ' ' << seconds(usage.ru_utime) + seconds(usage.ru_stime);
    std::map<int, double> by_process;
    for (const std::string& text : world_.everyone().all_gather(own.str())) {
      std::istringstream in(text);
      int process = 0;
      in >> process;
      in >> by_process[process];
    }
    double sum = 0;
    for (const auto& [process, busy] : by_process) sum += busy;
    return sum;
  }

  sc::World& world_;
  double wall_ = 0, busy_ = 0, own_ = 0;
};

/// All schedules of one family over the same stages.
class Course {
 public:
  Course(sc::World& world, const Settings& settings, const Family& family) : world_(world) {
    std::vector<std::string> names = family.recorded;
    names.insert(names.end(), family.predicted.begin(), family.predicted.end());
    const sc::Placement placement = sc::placement_in(world, names[0], family.stages_per_rank);
    std::vector<sc::Stage> stages;
    {
      static std::mutex mutex;  // all threads share one random generator
      const std::lock_guard lock(mutex);
      for (const sc::StageId stage : placement.stages_of(world.rank())) {
        stages.push_back(sc::make_stage(stage.value, GptPiece(settings.model, stage.value, placement.stages())));
      }
    }
    for (const std::string& name : names) {
      auto pipeline = std::make_unique<sc::Pipeline>(
          world, stages, sc::PipelineOptions{.schedule = name, .microbatches = settings.microbatches, .loss = loss_of});
      entries_.push_back({name, std::move(pipeline)});
    }
    optimizer_ = std::make_unique<torch::optim::AdamW>(entries_[0].pipeline->parameters(), 1e-4);
    recorded_ = family.recorded.size();
    tokens_ = torch::randint(settings.model.vocabulary, {settings.rows, settings.model.context}, torch::kLong);
    next_ = torch::randint(settings.model.vocabulary, {settings.rows, settings.model.context}, torch::kLong);
  }

  Turns round() {
    Turns turns;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (i < recorded_) turns.recordings.push_back(recorded_turn(entries_[i]));
      turns.measured.push_back(measured_turn(entries_[i]));
    }
    return turns;
  }

  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] bool is_recorded(std::size_t entry) const { return entry < recorded_; }

 private:
  void step(Entry& entry) {
    entry.pipeline->step({tokens_}, {.target = next_});
    optimizer_->step();
    optimizer_->zero_grad();
  }

  sc::Recording recorded_turn(Entry& entry) {
    entry.pipeline->record_timeline(true);
    sc::StepTimelines own;
    for (int i = 0; i < kStepsInTurn; ++i) {
      step(entry);
      own.push_back(entry.pipeline->timeline());
    }
    entry.pipeline->record_timeline(false);
    sc::Recording recording{entry.name, {}};
    for (const sc::Timeline& timeline : own) recording.steps.push_back(gathered(timeline));
    return recording;
  }

  double measured_turn(Entry& entry) {
    std::vector<double> seconds;
    step(entry);
    for (int i = 1; i < kStepsInTurn; ++i) {
      const double begin = sc::seconds_now();
      step(entry);
      seconds.push_back(sc::seconds_now() - begin);
    }
    return sc::median(seconds);
  }

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
  std::vector<Entry> entries_;
  std::size_t recorded_ = 0;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  at::Tensor tokens_, next_;
};

/// Runs rounds over all placements.
class Bench {
 public:
  Bench(sc::World& world, const Settings& settings) : world_(world), settings_(settings), others_(world) {
    for (const Family& family : families()) {
      if (settings.placement.empty() || settings.placement == family.placement) {
        courses_.emplace_back(world, settings, family);
      }
    }
    if (courses_.empty()) {
      throw sc::InvalidArgument("there is no placement " + settings.placement + ": take linear, loop or v");
    }
  }

  void run() {
    round();  // warm-up
    std::vector<Round> disturbed;
    for (int i = 0; i < settings_.rounds && !is_precise(); ++i) {
      Round next = round();
      (next.disturbance < kQuiet ? rounds_ : disturbed).push_back(std::move(next));
    }
    if (rounds_.size() < kLeastRounds) std::move(disturbed.begin(), disturbed.end(), std::back_inserter(rounds_));
  }

  /// Called on rank 0.
  void report(std::ostream& out) const {
    const char* separator = "[";
    for (std::size_t c = 0; c < courses_.size(); ++c) {
      std::vector<sc::Recording> recordings;
      for (const Round& round : rounds_) {
        const std::vector<sc::Recording>& own = round.turns[c].recordings;
        recordings.insert(recordings.end(), own.begin(), own.end());
      }
      const sc::Profile profile = sc::profile(recordings);
      for (std::size_t i = 0; i < courses_[c].entries().size(); ++i) {
        const Entry& entry = courses_[c].entries()[i];
        out << separator << "{\"schedule\": \"" << entry.name
            << "\", \"recorded\": " << (courses_[c].is_recorded(i) ? "true" : "false")
            << ", \"predicted\": " << sc::predicted_period(profile, entry.pipeline->schedule())
            << ", \"error\": " << error_of_median(measured(c, i)) << ", \"measured\": ";
        separator = "[";
        for (const double seconds : measured(c, i)) {
          out << separator << seconds;
          separator = ", ";
        }
        out << "]}";
      }
    }
    out << "]\n";
  }

 private:
  struct Round {
    std::vector<Turns> turns;  // by placement
    double disturbance = 0;    // processor time of other programs, in processors
  };

  Round round() {
    Round round;
    others_.begin();
    for (Course& course : courses_) round.turns.push_back(course.round());
    round.disturbance = others_.end();
    return round;
  }

  /// Step times of a schedule, one per round.
  [[nodiscard]] std::vector<double> measured(std::size_t course, std::size_t entry) const {
    std::vector<double> seconds;
    for (const Round& round : rounds_) seconds.push_back(round.turns[course].measured[entry]);
    return seconds;
  }

  /// Decided by rank 0, the same on all ranks.
  [[nodiscard]] bool is_precise() const {
    bool precise = rounds_.size() >= kLeastRounds;
    for (std::size_t c = 0; precise && c < courses_.size(); ++c) {
      for (std::size_t i = 0; i < courses_[c].entries().size(); ++i) {
        precise = precise && error_of_median(measured(c, i)) <= kPrecise * sc::median(measured(c, i));
      }
    }
    return world_.everyone().broadcast({{}, precise ? "precise" : ""}, 0).header == "precise";
  }

  sc::World& world_;
  const Settings& settings_;
  Others others_;
  std::vector<Course> courses_;
  std::vector<Round> rounds_;  // the rounds that count
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  std::vector<long long> numbers;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument[0] != '-') numbers.push_back(std::atoll(argv[i]));
    if (argument.starts_with(kPlacement)) settings.placement = argument.substr(kPlacement.size());
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
    Bench bench(world, settings);
    bench.run();
    if (world.is_first()) bench.report(std::cout);
  });
}

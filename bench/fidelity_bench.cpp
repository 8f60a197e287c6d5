// How well costs of a recorded run predict the step time of other schedules: the GPT of the demo on two ranks (threads,
// or two processes under mpirun), several schedules of one placement. Of each placement two schedules are recorded, one
// with whole backwards and one with split ones; all are predicted from these, and measured. Prints one line of JSON.
//
//   [mpirun -n RANKS] fidelity_bench FAMILY [RANKS [ROUNDS [MICROBATCHES [ROWS [WIDTH]]]]]
//
// Schedules take turns, a few steps each, so that what disturbs the machine for a while disturbs all of them alike;
// steps that are measured are not recorded, and the other way round. Turns in which nothing else used the processors
// come first. A step is one turn of a training loop: batch, step, optimizer.

#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>

#include "../examples/gpt/gpt.h"
#include "stagecraft/core/clock.h"
#include "stagecraft/core/median.h"
#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr int kStepsInTurn = 4;   // the first one finds the caches of another schedule
constexpr int kMostPatience = 2;  // times as many turns as are wanted
constexpr double kQuiet = 0.05;   // of a processor

struct Settings {
  int ranks = 2;
  int rounds = 5;
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

/// Some steps of one schedule, one after the other.
struct Turn {
  sc::Recording recording;      // if it was recorded, on rank 0
  std::vector<double> seconds;  // of its steps, if it was not
  double disturbance = 0;       // what else used processors meanwhile, as a part of one
};

struct Entry {
  std::string name;
  std::unique_ptr<sc::Pipeline> pipeline;
  std::vector<Turn> recorded;
  std::vector<Turn> measured;
};

at::Tensor loss_of(const sc::Value& logits, const sc::Value& next, const sc::ValueDict&) {
  return next_token_loss(logits.tensor(), next.tensor());
}

/// Processor time that others take.
class Others {
 public:
  explicit Others(sc::World& world) : world_(world) {}

  void begin() {
    wall_ = sc::seconds_now();
    busy_ = busy_of_machine();
    own_ = busy_of_program();
  }
  /// Since `begin`, as a part of one processor. The same on all ranks; they call both together.
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

  /// Ranks that are threads are one process.
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
  Course(sc::World& world, const Settings& settings, const Family& family)
      : world_(world), settings_(settings), others_(world) {
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
      entries_.push_back({name, std::move(pipeline), {}, {}});
    }
    optimizer_ = std::make_unique<torch::optim::AdamW>(entries_[0].pipeline->parameters(), 1e-4);
    recorded_ = family.recorded.size();
    tokens_ = torch::randint(settings.model.vocabulary, {settings.rows, settings.model.context}, torch::kLong);
    next_ = torch::randint(settings.model.vocabulary, {settings.rows, settings.model.context}, torch::kLong);
  }

  Turn turn(Entry& entry, bool record) {
    entry.pipeline->record_timeline(record);
    Turn turn{{entry.name, {}}, {}, 0};
    sc::StepTimelines own;
    others_.begin();
    double before = 0;
    for (int step = 0; step < kStepsInTurn; ++step) {
      entry.pipeline->step({tokens_}, {.target = next_});
      const double end = sc::seconds_now();
      optimizer_->step();
      optimizer_->zero_grad();
      if (record) own.push_back(entry.pipeline->timeline());
      if (!record && step > 0) turn.seconds.push_back(end - before);
      before = end;
    }
    turn.disturbance = others_.end();
    for (const sc::Timeline& timeline : own) turn.recording.steps.push_back(gathered(timeline));
    return turn;
  }

  /// In turns, until every schedule has had enough of them in peace, or for so long that it is hopeless.
  void run() {
    for (Entry& entry : entries_) turn(entry, false);  // everything allocates what it needs
    for (int round = 0; round < kMostPatience * settings_.rounds && !has_enough(); ++round) {
      for (std::size_t i = 0; i < entries_.size(); ++i) {
        if (i < recorded_) entries_[i].recorded.push_back(turn(entries_[i], true));
        entries_[i].measured.push_back(turn(entries_[i], false));
      }
    }
    for (Entry& entry : entries_) {
      keep_quietest(entry.recorded);
      keep_quietest(entry.measured);
    }
  }

  void report(std::ostream& out) {
    std::vector<sc::Recording> all;
    for (const Entry& entry : entries_) {
      for (const Turn& turn : entry.recorded) all.push_back(turn.recording);
    }
    const sc::Profile profile = sc::profile(all);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      const double predicted = sc::predicted_period(profile, entry.pipeline->schedule());
      std::vector<double> seconds;
      std::vector<double> disturbances;
      for (const Turn& turn : entry.measured) {
        seconds.insert(seconds.end(), turn.seconds.begin(), turn.seconds.end());
        disturbances.push_back(turn.disturbance);
      }
      out << (i > 0 ? ", " : "") << "{\"schedule\": \"" << entry.name
          << "\", \"recorded\": " << (i < recorded_ ? "true" : "false") << ", \"predicted\": " << predicted
          << ", \"measured\": " << sc::median(seconds) << ", \"disturbance\": " << sc::median(disturbances) << "}";
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

  /// Of each schedule: are there enough turns in which nothing else was going on?
  [[nodiscard]] bool has_enough() const {
    const auto enough = [&](const std::vector<Turn>& turns) {
      const auto quiet =
          std::count_if(turns.begin(), turns.end(), [](const Turn& t) { return t.disturbance < kQuiet; });
      return quiet >= settings_.rounds;
    };
    return std::all_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return enough(entry.measured) &&
             (&entry - entries_.data() >= static_cast<std::ptrdiff_t>(recorded_) || enough(entry.recorded));
    });
  }

  void keep_quietest(std::vector<Turn>& turns) const {
    std::stable_sort(turns.begin(), turns.end(),
                     [](const Turn& a, const Turn& b) { return a.disturbance < b.disturbance; });
    if (static_cast<int>(turns.size()) > settings_.rounds) turns.resize(static_cast<std::size_t>(settings_.rounds));
  }

  sc::World& world_;
  const Settings& settings_;
  Others others_;
  std::vector<Entry> entries_;
  std::size_t recorded_ = 0;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  at::Tensor tokens_, next_;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<long long> numbers;
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] != '-') numbers.push_back(std::atoll(argv[i]));
  }
  const auto argument = [&](std::size_t i, auto fallback) {
    return numbers.size() > i ? static_cast<decltype(fallback)>(numbers[i]) : fallback;
  };
  const auto family = argument(0, std::size_t{0});
  if (numbers.empty() || family >= families().size()) {
    std::cerr << "usage: fidelity_bench FAMILY [RANKS [ROUNDS [MICROBATCHES [ROWS [WIDTH]]]]], FAMILY from 0 to "
              << families().size() - 1 << "\n";
    return 2;
  }
  Settings settings;
  settings.ranks = argument(1, settings.ranks);
  settings.rounds = argument(2, settings.rounds);
  settings.microbatches = argument(3, settings.microbatches);
  settings.rows = argument(4, settings.rows);
  settings.model.width = argument(5, settings.model.width);
  return sc::launch(argc, argv, {.ranks = settings.ranks, .threads_per_rank = 1}, [&](sc::World& world) {
    Course course(world, settings, families()[family]);
    course.run();
    if (world.rank().value != 0) return;
    std::cout << "[";
    course.report(std::cout);
    std::cout << "]" << std::endl;
  });
}

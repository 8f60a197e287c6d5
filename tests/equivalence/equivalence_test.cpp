// Every schedule gives the losses, outputs, gradients and buffers of one device. Started alone, the program tests ranks
// as threads; under mpirun it tests processes: each computes the result of one device and compares it with its own
// rank's.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <numeric>

#include "models.h"
#include "stagecraft/automatic/automatic.h"
#include "support/every_setting.h"
#include "support/patience.h"
#include "support/processes.h"
#include "support/schedule_names.h"

namespace stagecraft::equivalence {
namespace {

constexpr std::uint64_t kSeed = 17;
constexpr std::int64_t kRows = 24;
constexpr std::int64_t kUnevenRows = 67;  // not the same for all replicas

/// Recording, comparing and the steps after the decision: nine in all.
constexpr AutoOptions kAutomatic = {.profile_steps = 1, .time_budget = 0.2};
constexpr int kAutomaticSteps = 9;

struct Setting {
  at::ScalarType type;
  std::string schedule;
  int ranks;
  int stages_per_rank;
  int microbatches;  // of each replica
  int replicas = 1;
  int steps = 2;  // accumulated
  bool recompute = false;

  [[nodiscard]] std::int64_t rows() const { return replicas > 1 ? kUnevenRows : kRows; }
  [[nodiscard]] int stages() const { return ranks * stages_per_rank; }
  [[nodiscard]] Placement placement() const {
    if (is_auto(schedule)) return auto_placement(ranks, stages_per_rank);
    return make_schedule(schedule, {.ranks = ranks, .stages_per_rank = stages_per_rank, .microbatches = 1}).placement;
  }
};

/// What a step leaves behind, on one device or in one replica.
struct Trace {
  std::vector<at::Tensor> losses;
  at::Tensor output;
  std::vector<at::Tensor> gradients;  // by stage, by parameter
  std::vector<at::Tensor> buffers;
};

at::Tensor square_loss(const at::Tensor& output, const at::Tensor& target) { return (output - target).pow(2).mean(); }

void run_everywhere(int ranks, int replicas, const std::function<void(World&)>& program) {
  if (processes() > 0) {
    World world(ProcessEnvironment::transport(), device(), kPatience, replicas);
    return program(world);
  }
  run_ranks({.ranks = ranks,
             .replicas = replicas,
             .threads_per_rank = 1,
             .device = [](RankId) { return device(); },
             .timeout = kPatience},
            program);
}

class Subject {
 public:
  Subject(const Model& model, const Setting& setting) : model_(model), setting_(setting) {
    torch::manual_seed(5);
    for (int r = 0; r < setting.replicas; ++r) {  // each begins elsewhere; all must become the first
      for (int s = 0; s < setting.stages(); ++s) {
        copies_.push_back(model.make(s, setting.stages()));
        copies_.back()->to(device(), setting.type);
      }
    }
    input_ = model.input(setting.rows()).to(device(), setting.type);
    target_ = at::randn_like(input_);
  }

  /// All steps accumulated, one microbatch after the other, on one device.
  Trace one_device() {
    Trace trace;
    at::set_num_threads(1);
    for (std::uint64_t step = 0; step < static_cast<std::uint64_t>(setting_.steps); ++step) {
      std::vector<at::Tensor> outputs;
      trace.losses.clear();
      const auto inputs = pieces_of(input_);
      const auto targets = pieces_of(target_);
      for (int m = 0; m < setting_.microbatches * setting_.replicas; ++m) {
        outputs.push_back(forward(inputs[static_cast<std::size_t>(m)], m, step));
        const at::Tensor loss = square_loss(outputs.back(), targets[static_cast<std::size_t>(m)]);
        trace.losses.push_back(loss.detach());
        const auto rows = static_cast<double>(inputs[static_cast<std::size_t>(m)].size(0));
        (loss * (rows / static_cast<double>(setting_.rows()))).backward();
        outputs.back() = outputs.back().detach();
      }
      trace.output = at::cat(outputs);
    }
    collect(trace, 0);
    return trace;
  }

  /// By replica.
  std::vector<Trace> pipelined() {
    std::vector<Trace> traces(static_cast<std::size_t>(setting_.replicas));
    run_everywhere(setting_.ranks, setting_.replicas, [&](World& world) {
      Trace& trace = traces[static_cast<std::size_t>(world.replica())];
      const Placement placement = setting_.placement();
      std::vector<Stage> stages;
      for (const StageId stage : placement.stages_of(world.rank())) {
        const PiecePtr piece = copy_of(stage.value, world.replica());
        stages.push_back(make_stage(stage.value, piece,
                                    [piece](const StageCall& call) { return Value(piece->run(call.arguments)); }));
      }
      Pipeline pipeline(world, std::move(stages),
                        {.schedule = setting_.schedule,
                         .microbatches = setting_.microbatches,
                         .loss = [](const Value& output, const Value& target,
                                    const ValueDict&) { return square_loss(output[0].tensor(), target.tensor()); },
                         .edges = model_.edges(setting_.stages()),
                         .seed = kSeed,
                         .recompute = setting_.recompute ? Recompute::stage() : Recompute(),
                         .automatic = kAutomatic});
      const at::Tensor input = world.share_of(input_);
      const at::Tensor target = world.share_of(target_);
      pipeline.eval({input});  // leaves nothing behind
      for (int step = 0; step < setting_.steps; ++step) {
        const StepResult result = pipeline.step({input}, {.target = target, .return_outputs = true});
        EXPECT_EQ(result.has_loss(), pipeline.has_last_stage());
        if (!pipeline.has_last_stage()) continue;
        trace.losses = result.losses;
        trace.output = result.output[0].tensor();
      }
      if (processes() == 0 && (!world.is_first() || world.replica() > 0)) return;
      here_ = processes() == 0 ? -1 : world.replica();
      in_order_ = weight_parts_in_order(pipeline.schedule());
      if (is_auto(setting_.schedule)) {
        EXPECT_EQ(auto_report(pipeline).phase, AutoReport::Phase::kDecided);
        in_order_.assign(in_order_.size(), false);  // steps had different schedules
      }
      for (int s = 0; s < setting_.stages(); ++s) {
        is_here_.push_back(processes() == 0 || placement.rank_of(StageId(s)) == world.rank());
      }
    });
    for (int r = 0; r < setting_.replicas; ++r) collect(traces[static_cast<std::size_t>(r)], r);
    return traces;
  }

  /// Whether it is in this process.
  [[nodiscard]] bool has_replica(int replica) const { return here_ < 0 || here_ == replica; }
  /// By stage: whether it is on a rank of this process.
  [[nodiscard]] const std::vector<bool>& is_here() const { return is_here_; }
  /// By stage: whether its weight parts run in the order of the microbatches.
  [[nodiscard]] const std::vector<bool>& in_order() const { return in_order_; }
  [[nodiscard]] std::size_t parameters_of(int stage) const { return copy_of(stage, 0)->parameters().size(); }

  [[nodiscard]] std::size_t buffers_of(int stage) const { return copy_of(stage, 0)->buffers().size(); }

  /// Forgets gradients and running statistics.
  void reset() {
    for (const PiecePtr& piece : copies_) {
      piece->zero_grad(/*set_to_none=*/true);
      for (const auto& buffer : piece->named_buffers()) {
        const torch::NoGradGuard no_grad;
        buffer.value().fill_(buffer.key().ends_with("running_var") ? 1 : 0);
      }
    }
  }

  /// Rows of every microbatch, of all replicas.
  [[nodiscard]] std::vector<std::int64_t> microbatch_rows() const {
    std::vector<std::int64_t> all;
    for (const std::int64_t share : even_sizes(setting_.rows(), setting_.replicas)) {
      for (const std::int64_t rows : even_sizes(share, setting_.microbatches)) all.push_back(rows);
    }
    return all;
  }

 private:
  [[nodiscard]] PiecePtr copy_of(int stage, int replica) const {
    return copies_[static_cast<std::size_t>(replica * setting_.stages() + stage)];
  }

  [[nodiscard]] std::vector<at::Tensor> pieces_of(const at::Tensor& batch) const {
    return batch.split_with_sizes(microbatch_rows());
  }

  at::Tensor forward(const at::Tensor& input, int microbatch, std::uint64_t step) {
    const std::vector<Edge> edges = model_.edges(setting_.stages());
    std::vector<ValueList> results;
    for (int s = 0; s < setting_.stages(); ++s) {
      ValueList arguments;
      if (s == 0) {
        arguments = {input};
      } else if (edges.empty()) {
        arguments = results.back();
      } else {
        for (int argument = 0; argument < 2; ++argument) {
          for (const Edge& edge : edges) {
            if (edge.to == StageId(s) && edge.argument == argument) {
              arguments.push_back(results[edge.from.index()][static_cast<std::size_t>(edge.output)]);
            }
          }
        }
      }
      const RandomScope random(kSeed, StageId(s), MicrobatchId(microbatch), step);
      results.push_back(copy_of(s, 0)->run(arguments));
    }
    return results.back()[0].tensor();
  }

  void collect(Trace& trace, int replica) const {
    for (int s = 0; s < setting_.stages(); ++s) {
      const PiecePtr piece = copy_of(s, replica);
      for (const at::Tensor& parameter : piece->parameters()) {
        trace.gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
      }
      for (const at::Tensor& buffer : piece->buffers()) trace.buffers.push_back(buffer.clone());
    }
  }

  static std::vector<bool> weight_parts_in_order(const Schedule& schedule) {
    std::vector<int> last(static_cast<std::size_t>(schedule.stages()), -1);
    std::vector<bool> in_order(last.size(), true);
    for (const Row& row : schedule.rows) {
      for (const Action& action : row) {
        for_each_part(action, [&](const Action& part) {
          if (!gives_weight_gradient(part.kind())) return;
          int& before = last[part.stage().index()];
          if (part.microbatch().value < before) in_order[part.stage().index()] = false;
          before = part.microbatch().value;
        });
      }
    }
    return in_order;
  }

  const Model& model_;
  Setting setting_;
  std::vector<PiecePtr> copies_;  // by replica, by stage
  int here_ = -1;                 // the replica in this process; -1: all
  at::Tensor input_, target_;
  std::vector<bool> in_order_;
  std::vector<bool> is_here_;
};

/// Equal bit for bit, or up to rounding where sums have another order.
void expect_close(const at::Tensor& got, const at::Tensor& expected, bool exactly, const std::string& what) {
  ASSERT_EQ(got.defined(), expected.defined()) << what;
  if (!got.defined()) return;
  if (exactly) {
    EXPECT_TRUE(at::equal(got, expected)) << what << " is not the same bit for bit";
  } else {
    const double scale = std::max(1e-300, expected.abs().max().item<double>());
    const double tolerance = got.scalar_type() == at::kDouble ? 1e-12 : 1e-5;
    EXPECT_LE((got - expected).abs().max().item<double>() / scale, tolerance) << what;
  }
}

/// Compares a replica's losses and outputs with its share of one device's, and its gradients with those of the whole
/// batch.
void compare(const Subject& subject, const Setting& setting, int replica, const Trace& got, const Trace& expected) {
  if (subject.is_here().back()) {
    const auto count = static_cast<std::size_t>(setting.microbatches);
    const std::size_t first = count * static_cast<std::size_t>(replica);
    ASSERT_EQ(got.losses.size(), count);
    for (std::size_t i = 0; i < count; ++i) expect_close(got.losses[i], expected.losses[first + i], true, "loss");
    const std::vector<std::int64_t> rows = subject.microbatch_rows();
    const std::int64_t before = std::accumulate(rows.begin(), rows.begin() + static_cast<int>(first), std::int64_t{0});
    expect_close(got.output, expected.output.narrow(0, before, got.output.size(0)), true, "output");
  }
  const bool is_alone = setting.replicas == 1;
  std::size_t parameter = 0;
  std::size_t buffer = 0;
  for (int s = 0; s < setting.stages(); ++s) {
    const bool is_here = subject.is_here()[static_cast<std::size_t>(s)];
    for (std::size_t i = 0; i < subject.buffers_of(s); ++i, ++buffer) {
      // A replica's statistics are those of its share of the batch.
      if (is_here && is_alone) expect_close(got.buffers[buffer], expected.buffers[buffer], true, "buffer");
    }
    for (std::size_t i = 0; i < subject.parameters_of(s); ++i, ++parameter) {
      if (!is_here) continue;
      expect_close(got.gradients[parameter], expected.gradients[parameter],
                   is_alone && subject.in_order()[static_cast<std::size_t>(s)],
                   "gradient of stage " + std::to_string(s));
    }
  }
}

void compare(const Model& model, const Setting& setting) {
  SCOPED_TRACE(model.name + ", " + c10::toString(setting.type) + ", " + std::to_string(setting.ranks) + " ranks, " +
               std::to_string(setting.stages_per_rank) + " stages per rank, " + std::to_string(setting.microbatches) +
               " microbatches, " + std::to_string(setting.replicas) + " replicas" +
               (setting.recompute ? ", recomputed" : ""));
  Subject subject(model, setting);
  const Trace expected = subject.one_device();
  subject.reset();
  const std::vector<Trace> got = subject.pipelined();
  for (int r = 0; r < setting.replicas; ++r) {
    if (subject.has_replica(r)) compare(subject, setting, r, got[static_cast<std::size_t>(r)], expected);
  }
}

class Equivalence : public testing::TestWithParam<std::string> {};

TEST_P(Equivalence, EqualsOneDevice) {
  const Generator& generator = find_generator(GetParam());
  int settings = 0;
  for (const int ranks : processes() > 0 ? std::vector{processes()} : std::vector{1, 2, 3, 4}) {
    for (const int per_rank : {1, 2, 3}) {
      if (per_rank < generator.min_stages_per_rank || per_rank > generator.max_stages_per_rank) continue;
      for (const int microbatches : {1, 2, 3, 4, 7, 8, 12}) {
        for (const Model& model : models()) {
          for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
            // A small selection that still has every model, every rank count and every number of microbatches.
            if (++settings % 41 != 0 && !every_setting()) continue;
            const bool recompute = settings % 2 == 0;
            compare(model, {type, GetParam(), ranks, per_rank, microbatches, 1, 2, recompute});
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

/// Ranks of a pipeline and replicas.
std::vector<std::pair<int, int>> worlds_of_replicas() {
  if (processes() == 0) return {{2, 2}, {1, 3}, {3, 2}, {2, 3}};
  std::vector<std::pair<int, int>> worlds;
  for (int replicas = 2; replicas <= processes(); ++replicas) {
    if (processes() % replicas == 0) worlds.emplace_back(processes() / replicas, replicas);
  }
  return worlds;
}

TEST_P(Equivalence, ReplicasEqualOneDeviceOnTheWholeBatch) {
  const Generator& generator = find_generator(GetParam());
  int settings = 0;
  for (const auto& [ranks, replicas] : worlds_of_replicas()) {
    for (const int microbatches : {2, 3, 4, 8}) {
      for (const Model& model : models()) {
        for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
          if (!every_setting() && ++settings % 23 != 0) continue;
          const bool recompute = microbatches % 2 == 1;
          compare(model,
                  {type, GetParam(), ranks, generator.min_stages_per_rank, microbatches, replicas, 2, recompute});
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

/// The schedule changes while gradients accumulate; the results do not.
TEST(EquivalenceOfAuto, EqualsOneDevice) {
  int settings = 0;
  for (const int ranks : processes() > 0 ? std::vector{processes()} : std::vector{1, 2, 3}) {
    for (const int per_rank : {1, 2, 3}) {
      for (const int microbatches : {1, 4, 7}) {
        for (const Model& model : models()) {
          if (!every_setting() && ++settings % 19 != 0) continue;
          compare(model, {at::kDouble, "auto", ranks, per_rank, microbatches, 1, kAutomaticSteps});
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(EquivalenceOfAuto, ReplicasEqualOneDeviceOnTheWholeBatch) {
  int settings = 0;
  for (const auto& [ranks, replicas] : worlds_of_replicas()) {
    for (const int per_rank : {1, 2}) {
      for (const Model& model : models()) {
        if (!every_setting() && ++settings % 17 != 0) continue;
        compare(model, {at::kDouble, "auto", ranks, per_rank, 4, replicas, kAutomaticSteps});
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Equivalence, testing::ValuesIn(training_schedules()), test_name);

}  // namespace
}  // namespace stagecraft::equivalence

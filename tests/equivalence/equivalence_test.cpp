// Every schedule gives what one device gives: losses, outputs, gradients, and what the stages keep for themselves. By
// itself the program tests ranks as threads. Under mpirun it tests processes: every process computes what one device
// gives, and compares what its own rank did.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>

#include "models.h"
#include "support/mpi_world.h"
#include "support/schedule_names.h"

namespace stagecraft::equivalence {
namespace {

constexpr std::uint64_t kSeed = 17;
constexpr std::int64_t kRows = 24;

struct Setting {
  at::ScalarType type;
  std::string schedule;
  int ranks;
  int stages_per_rank;
  int microbatches;

  [[nodiscard]] int stages() const { return ranks * stages_per_rank; }
};

/// What a step leaves behind.
struct Trace {
  std::vector<at::Tensor> losses;
  at::Tensor output;
  std::vector<at::Tensor> gradients;  // by stage, by parameter
  std::vector<at::Tensor> buffers;
};

at::Tensor square_loss(const at::Tensor& output, const at::Tensor& target) { return (output - target).pow(2).mean(); }

void run_everywhere(int ranks, const std::function<void(World&)>& program) {
  if (processes() > 0) {
    static World world(MpiEnvironment::transport(), device(), MpiEnvironment::kTimeout);
    return program(world);
  }
  run_ranks({.ranks = ranks,
             .threads_per_rank = 1,
             .device = [](RankId) { return device(); },
             .timeout = std::chrono::seconds(30)},
            program);
}

class Subject {
 public:
  Subject(const Model& model, const Setting& setting) : model_(model), setting_(setting) {
    torch::manual_seed(5);
    for (int s = 0; s < setting.stages(); ++s) {
      pieces_.push_back(model.make(s, setting.stages()));
      pieces_.back()->to(device(), setting.type);
    }
    input_ = model.input(kRows).to(device(), setting.type);
    target_ = at::randn_like(input_);
  }

  /// Two steps accumulated, one microbatch after the other, on one device.
  Trace one_device() {
    Trace trace;
    at::set_num_threads(1);
    for (std::uint64_t step = 0; step < 2; ++step) {
      std::vector<at::Tensor> outputs;
      trace.losses.clear();
      const auto inputs = pieces_of(input_);
      const auto targets = pieces_of(target_);
      for (int m = 0; m < setting_.microbatches; ++m) {
        outputs.push_back(forward(inputs[static_cast<std::size_t>(m)], m, step));
        const at::Tensor loss = square_loss(outputs.back(), targets[static_cast<std::size_t>(m)]);
        trace.losses.push_back(loss.detach());
        (loss * (static_cast<double>(inputs[static_cast<std::size_t>(m)].size(0)) / kRows)).backward();
        outputs.back() = outputs.back().detach();
      }
      trace.output = at::cat(outputs);
    }
    collect(trace);
    return trace;
  }

  Trace pipelined() {
    Trace trace;
    run_everywhere(setting_.ranks, [&](World& world) {
      Schedule schedule = make_schedule(setting_.schedule, shape());
      std::vector<Stage> stages;
      for (const StageId stage : schedule.placement.stages_of(world.rank())) {
        const PiecePtr piece = pieces_[stage.index()];
        stages.push_back(make_stage(stage.value, piece,
                                    [piece](const StageCall& call) { return Value(piece->run(call.arguments)); }));
      }
      Pipeline pipeline(world, std::move(stages),
                        {.schedule = setting_.schedule,
                         .microbatches = setting_.microbatches,
                         .loss = [](const Value& output, const Value& target,
                                    const ValueDict&) { return square_loss(output[0].tensor(), target.tensor()); },
                         .edges = model_.edges(setting_.stages()),
                         .seed = kSeed});
      pipeline.eval({input_});  // leaves nothing behind
      for (int step = 0; step < 2; ++step) {
        const StepResult result = pipeline.step({input_}, {.target = target_, .return_outputs = true});
        EXPECT_EQ(result.has_loss(), pipeline.has_last_stage());
        if (!pipeline.has_last_stage()) continue;
        trace.losses = result.losses;
        trace.output = result.output[0].tensor();
      }
      if (processes() == 0 && !world.is_first()) return;
      in_order_ = weight_parts_in_order(pipeline.schedule());
      for (int s = 0; s < setting_.stages(); ++s) {
        is_here_.push_back(processes() == 0 || schedule.placement.rank_of(StageId(s)) == world.rank());
      }
    });
    collect(trace);
    return trace;
  }

  /// By stage: whether it is on a rank of this process.
  [[nodiscard]] const std::vector<bool>& is_here() const { return is_here_; }
  /// By stage: whether its weight parts run in the order of the microbatches.
  [[nodiscard]] const std::vector<bool>& in_order() const { return in_order_; }
  [[nodiscard]] std::size_t parameters_of(int stage) const {
    return pieces_[static_cast<std::size_t>(stage)]->parameters().size();
  }

  [[nodiscard]] std::size_t buffers_of(int stage) const {
    return pieces_[static_cast<std::size_t>(stage)]->buffers().size();
  }

  /// Forgets gradients and running statistics.
  void reset() {
    for (std::size_t s = 0; s < pieces_.size(); ++s) {
      pieces_[s]->zero_grad(/*set_to_none=*/true);
      for (const auto& buffer : pieces_[s]->named_buffers()) {
        const torch::NoGradGuard no_grad;
        buffer.value().fill_(buffer.key().ends_with("running_var") ? 1 : 0);
      }
    }
  }

 private:
  [[nodiscard]] Shape shape() const {
    return {
        .ranks = setting_.ranks, .stages_per_rank = setting_.stages_per_rank, .microbatches = setting_.microbatches};
  }

  [[nodiscard]] std::vector<at::Tensor> pieces_of(const at::Tensor& batch) const {
    return batch.split_with_sizes(even_sizes(kRows, setting_.microbatches));
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
            if (edge.to == s && edge.argument == argument) {
              arguments.push_back(results[static_cast<std::size_t>(edge.from)][static_cast<std::size_t>(edge.output)]);
            }
          }
        }
      }
      const RandomScope random(kSeed, StageId(s), MicrobatchId(microbatch), step);
      results.push_back(pieces_[static_cast<std::size_t>(s)]->run(arguments));
    }
    return results.back()[0].tensor();
  }

  void collect(Trace& trace) const {
    for (const PiecePtr& piece : pieces_) {
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
  std::vector<PiecePtr> pieces_;
  at::Tensor input_, target_;
  std::vector<bool> in_order_;
  std::vector<bool> is_here_;
};

/// Bit for bit, or to the precision that sums in another order leave.
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

void compare(const Model& model, const Setting& setting) {
  SCOPED_TRACE(model.name + ", " + c10::toString(setting.type) + ", " + std::to_string(setting.ranks) + " ranks, " +
               std::to_string(setting.stages_per_rank) + " stages per rank, " + std::to_string(setting.microbatches) +
               " microbatches");
  Subject subject(model, setting);
  const Trace expected = subject.one_device();
  subject.reset();
  const Trace got = subject.pipelined();
  if (subject.is_here().back()) {
    ASSERT_EQ(got.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < got.losses.size(); ++i) expect_close(got.losses[i], expected.losses[i], true, "loss");
    expect_close(got.output, expected.output, true, "output");
  }
  std::size_t parameter = 0;
  std::size_t buffer = 0;
  for (int s = 0; s < setting.stages(); ++s) {
    for (std::size_t i = 0; i < subject.buffers_of(s); ++i, ++buffer) {
      if (subject.is_here()[static_cast<std::size_t>(s)]) {
        expect_close(got.buffers[buffer], expected.buffers[buffer], true, "buffer");
      }
    }
    for (std::size_t i = 0; i < subject.parameters_of(s); ++i, ++parameter) {
      if (!subject.is_here()[static_cast<std::size_t>(s)]) continue;
      expect_close(got.gradients[parameter], expected.gradients[parameter],
                   subject.in_order()[static_cast<std::size_t>(s)], "gradient of stage " + std::to_string(s));
    }
  }
}

bool run_all() { return std::getenv("STAGECRAFT_TEST_ALL") != nullptr; }

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
            // A small cut that still has every model, every rank count and every number of microbatches.
            if (!run_all() && ++settings % 23 != 0) continue;
            compare(model, {type, GetParam(), ranks, per_rank, microbatches});
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Equivalence, testing::ValuesIn(training_schedules()), test_name);

}  // namespace
}  // namespace stagecraft::equivalence
